"""The pages that talk to models: /chat, llama.cpp's own page of each replica, and /translate.

Both ask the router from the browser; nothing of what is said passes through this process.
"""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse

from dashboard.history import History
from dashboard.languages import LANGUAGES
from dashboard.pages import page


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/chat")
    async def chat(request: Request) -> HTMLResponse:
        return page(request, "chat.html")

    @router.get("/translate")
    async def translate(request: Request) -> HTMLResponse:
        return page(request, "translate.html", languages=LANGUAGES.values())

    @router.get("/translate/languages")
    async def languages() -> JSONResponse:
        listed = [{"code": code, "name": name} for code, name in LANGUAGES.items()]
        return JSONResponse({"languages": listed})

    return router
