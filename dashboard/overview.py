"""The page `/dash`. What it shows comes as JSON: from the router itself, and from `panels`."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from dashboard.assets import PLOTLY
from dashboard.history import History
from dashboard.pages import page


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/dash")
    @router.get("/dash/", include_in_schema=False)
    async def show(request: Request) -> HTMLResponse:
        return page(request, "dash.html", plotly=PLOTLY)

    return router
