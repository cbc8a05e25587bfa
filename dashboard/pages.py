"""What all pages share: the frame around them, their safety headers, and how a module adds its own.

A module of pages has `routes(history) -> APIRouter`; `app.py` lists them. In it:

    @router.get("/dash/things/{thing}")
    async def show(request: Request, thing: int) -> HTMLResponse:
        return page(request, "thing.html", thing=thing, rows=rows)

Templates stand in templates/ and extend base.html; everything in them is escaped. In every template: `root`, the way
back to the router's own "/" from here, for links (`{{ root }}dash`), and `static`, where scripts and styles are. Both
are relative, so that a proxy may put the router under any path. Filters: UNITS, and `time`, which makes a moment that
is shown in the reader's own time, and `linked(root)`, which makes links of the requests and swaps that a text names.

A page that changes while it is looked at extends `frame` and is asked for again with `?part=1`, which gives its content
alone; see static/story.js.
"""

import re
from functools import cache
from typing import Annotated, Any

from fastapi import Path, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dashboard import units, words
from dashboard.assets import assets

NAVIGATION = (
    ("dash", "Dashboard"),
    ("dash/whatif", "What if"),
    ("chat", "Chat"),
    ("translate", "Translate"),
    ("docs", "API docs"),
)
"""Path from the root, and name."""

Number = Annotated[int, Path(ge=0, le=(1 << 63) - 1)]
"""Of a request, a swap, a line: in an address, as large as the tables can hold. With any other there is nothing."""

UNITS = ("duration", "number", "count", "rate", "percent", "signed_percent", "size", "mib", "cost", "listed", "gpus")
"""Filters of templates that `units` has."""

SAFETY = {
    # Nothing from elsewhere, nothing inline. Plotly writes its own style element.
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


def page(request: Request, template: str, *, status: int = 200, **data: Any) -> HTMLResponse:
    """The page that this template makes of the data."""
    root = root_of(request)
    here = request.url.path.strip("/")
    text = (
        _environment()
        .get_template(template)
        .render(
            root=root,
            frame="part.html" if request.query_params.get("part") else "base.html",
            static=f"{root}dash/static/{assets().version}",
            navigation=NAVIGATION,
            # The longest that fits is where we are: a request's page belongs to the dashboard.
            here=max((path for path, _ in NAVIGATION if f"{here}/".startswith(f"{path}/")), key=len, default=""),
            **data,
        )
    )
    return HTMLResponse(text, status, SAFETY)


def root_of(request: Request) -> str:
    """The relative way from this page to the router's "/": `./` at /dash, `../../` at /dash/requests/7."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return "../" * (raw.partition(b"?")[0].count(b"/") - 1) or "./"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(units, name) for name in UNITS}
    environment.filters |= {"time": time, "linked": linked, "sentence": words.sentence}
    return environment


def time(at_us: int | None) -> str | Markup:
    """A moment in microseconds since 1970: UTC, of which base.js makes the reader's own time."""
    if at_us is None:
        return units.UNKNOWN
    shown = escape(units.moment(at_us))
    return Markup(f'<time datetime="{units.iso(at_us)}" data-us="{at_us:d}">{shown}</time>')


_NAMED = re.compile(r"\b([Rr]equest|[Ss]wap) (\d+)\b")


def linked(text: str, root: str) -> Markup:
    """Requests and swaps that a text names become links to their pages; everything else in it is escaped."""
    return Markup(
        _NAMED.sub(
            lambda found: f'<a href="{escape(root)}dash/{found[1].lower()}s/{found[2]}">{found[0]}</a>', escape(text)
        )
    )
