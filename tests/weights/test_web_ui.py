"""llama.cpp's own web UI, as the embedded server has it, through the router."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.real_router import RealRouter
from tests.weights.conftest import Weights

pytestmark = pytest.mark.weights


def test_the_web_ui_of_a_replica_is_served_and_finds_what_it_asks_for(weights: Weights, tmp_path: Path) -> None:
    """The page, everything that it loads, and its questions to the server, all under /instance/{replica}/."""
    with RealRouter(tmp_path, weights("tiny"), {"alpha": {}}) as router:
        before = len(router.events("RequestArrived"))
        loaded = router.call("POST", "/models/load", {"model": "alpha", "wait": True})
        assert loaded.status == 200, loaded.read()
        base = "/instance/alpha/"
        page = router.call("GET", base, Accept_Encoding="gzip")
        assert page.status == 200
        html = page.read()
        if page.header("content-encoding") == "gzip":
            html = gzip.decompress(html)
        assert b"<html" in html.lower()
        for asset in re.findall(r'(?:src|href)="\.?/?([^"#:]+\.(?:js|css|svg|ico|png)[^"]*)"', html.decode()):
            assert router.call("GET", base + asset, Accept_Encoding="gzip").status == 200, asset
        assert router.call("GET", "/instance/alpha").status in (301, 307, 308), "the page's own paths are relative"
        assert router.call("GET", f"{base}health").json() == {"status": "ok"}
        assert json.loads(router.call("GET", f"{base}props").read())["total_slots"] == 2
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        assert len(router.events("RequestArrived")) == before
        assert router.call("POST", f"{base}v1/chat/completions", chat).status == 200
        router.wait_event("RequestFinished")
        assert len(router.events("RequestArrived")) == before + 1, "only what it generates takes a place in the queue"
