"""The page `/dash`. What it shows comes as JSON: from the router itself, and from `panels`."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from dashboard.assets import PLOTLY, assets
from dashboard.history import History
from dashboard.pages import page

RANGES = (("15m", "15 min"), ("1h", "1 h"), ("6h", "6 h"), ("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d"))
TILES = (
    ("requests", "Requests"),
    ("success", "Success"),
    ("wait", "Wait, median"),
    ("ttft", "First token, median"),
    ("swaps", "Swaps"),
    ("prompt", "Prompt tokens"),
    ("generated", "Generated"),
    ("waste", "Waste"),
)
OUTCOMES = (
    ("", "Every outcome"),
    ("ok", "Answered"),
    ("not_ok", "Not answered well"),
    ("error", "Error of llama-server"),
    ("failed", "Failed"),
    ("rejected", "Refused"),
    ("cancelled", "Cancelled"),
    ("lost", "Lost"),
    ("open", "Not ended"),
)

SCRIPTS = tuple(
    path for path in assets().files if path.endswith(".js") and path.startswith(("dash", "lib/")) and path != "dash.js"
)
"""Asked for at once, and not one after the other as they import each other."""


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/dash")
    @router.get("/dash/", include_in_schema=False)
    async def show(request: Request) -> HTMLResponse:
        return page(
            request,
            "dash.html",
            plotly=PLOTLY,
            scripts=SCRIPTS,
            ranges=RANGES,
            tiles=TILES,
            outcomes=OUTCOMES,
        )

    return router
