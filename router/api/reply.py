"""Answers of the router's own routes: JSON by msgspec, and the headers that streams need."""

from typing import Any

import msgspec
from starlette.responses import Response

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Without the second, nginx keeps the frames back until it has a few KiB of them."""


class Json(Response):
    """Any value that msgspec can encode, structs of the log included."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
