"""Scripts and styles, served from the installation: nothing is fetched from anywhere else.

All of them are under one path that changes with their content, so a browser keeps them for ever and never mixes two
versions. plotly.js comes out of the installed `plotly` package. What is sent compressed is compressed once.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version as installed_version
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from fastapi.responses import Response

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PLOTLY = f"plotly-{installed_version('plotly')}.js"
SMALLEST_COMPRESSED = 512


@dataclass
class Asset:
    """One file."""

    content: bytes
    media_type: str

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, 6, mtime=0)


@dataclass
class Assets:
    """Path below static/ to file; `version` stands for the content of all."""

    files: dict[str, Asset] = field(default_factory=dict)
    version: str = ""


@cache
def assets() -> Assets:
    """Those of this installation."""
    found = Assets()
    digest = hashlib.sha256()
    for path, file in sorted(_below(files("dashboard") / "static", "")):
        content = file.read_bytes()
        digest.update(path.encode() + b"\0" + content)
        found.files[path] = Asset(content, TYPES[path.rpartition(".")[2]])
    found.version = digest.hexdigest()[:12]
    return found


@cache
def plotly_script() -> Asset:
    return Asset((files("plotly") / "package_data" / "plotly.min.js").read_bytes(), TYPES["js"])


def routes() -> APIRouter:
    router = APIRouter()

    @router.get(f"/dash/static/{PLOTLY}")
    async def send_plotly(request: Request) -> Response:
        script = plotly_script()
        # Megabytes: not on the event loop.
        await asyncio.to_thread(lambda: script.compressed)
        return _answer(request, script)

    @router.get("/dash/static/{version}/{path:path}")
    async def send(request: Request, version: str, path: str) -> Response:
        asset = assets().files.get(path)
        if asset is None or version != assets().version:
            return Response(f"there is no {path} of version {version} here\n", 404, media_type="text/plain")
        return _answer(request, asset)

    return router


def _answer(request: Request, asset: Asset) -> Response:
    headers = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
    body = asset.content
    if len(body) >= SMALLEST_COMPRESSED:
        headers["vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            body = asset.compressed
            headers["content-encoding"] = "gzip"
    return Response(body, media_type=asset.media_type, headers=headers)


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _below(file, f"{prefix}{file.name}/")
        elif file.name.rpartition(".")[2] in TYPES:
            yield f"{prefix}{file.name}", file
