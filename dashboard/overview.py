"""The page `/dash`. What it shows comes as JSON: from the router itself, and from `panels`."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from dashboard.assets import PLOTLY
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


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/dash")
    @router.get("/dash/", include_in_schema=False)
    async def show(request: Request) -> HTMLResponse:
        return page(request, "dash.html", plotly=PLOTLY, ranges=RANGES, tiles=TILES, outcomes=OUTCOMES)

    return router
