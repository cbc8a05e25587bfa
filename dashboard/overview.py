"""The page `/dash`. What it shows comes as JSON: from the router itself, and from `panels`."""

import asyncio
import math
import time

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from dashboard.assets import PLOTLY, assets
from dashboard.history import History
from dashboard.pages import page
from projections.errors import QuestionFailed

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


SOON_S = 0.2
LONGEST_DEFAULT = "24h"
"""What a router that has been there for long shows first."""
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def default_range(age_s: float) -> str:
    """The shortest range that shows all there is, so that a young router's first hour is no line at the right edge."""
    for value, _ in RANGES:
        if value == LONGEST_DEFAULT or age_s <= int(value[:-1]) * _SECONDS[value[-1]]:
            return value
    return LONGEST_DEFAULT


async def _age_s(history: History) -> float:
    """Since the first request; endless where that is not known soon: the page does not wait for it."""
    try:
        async with asyncio.timeout(SOON_S):  # others may be asking
            answer = await history.ask("SELECT min(arrived_us) FROM requests", time_limit_s=SOON_S)
    except (QuestionFailed, TimeoutError):
        return math.inf
    first_us = answer.rows[0][0]
    return 0.0 if first_us is None else time.time() - first_us / 1e6


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
            default_range=default_range(await _age_s(history)),
            tiles=TILES,
            outcomes=OUTCOMES,
        )

    return router
