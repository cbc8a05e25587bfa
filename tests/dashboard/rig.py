"""A dashboard on a log of the test's, in this process: its tables, its application, and questions to both."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from dashboard.app import create_app
from dashboard.history import History


@contextmanager
def dashboard_on(folder: Path) -> Iterator["Dashboard"]:
    """On the log in `folder`/log, whose every line is in the tables before the block begins."""
    failures: list[BaseException] = []
    history = History(folder / "log", folder / "history.duckdb", failures.append)
    history.start()
    try:
        assert history.wait_caught_up(30)
        yield Dashboard(history)
    finally:
        history.close()
    assert not failures


class Dashboard:
    """Its application and its tables."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.app = create_app(history)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return fetch(self.app, path, **headers)

    def panel(self, name: str, **parameters: Any) -> dict[str, Any]:
        query = httpx.QueryParams({"since": "1000000000", **parameters})
        answer = self.get(f"/dash/api/panels/{name}?{query}")
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def sql(self, text: str, **parameters: Any) -> list[dict[str, Any]]:
        return asyncio.run(self.history.ask(text, parameters, time_limit_s=20)).records()


def text_of(html: str) -> str:
    """What is there to be read: no tags, and one blank between words."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def fetch(app: FastAPI, path: str, *, raises: bool = True, **headers: str) -> httpx.Response:
    """GET, without a network. `raises`: what the application fails with, it fails here."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(go())
