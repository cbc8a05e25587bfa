"""A router on real llama.cpp, streams that are read while the test does something else, and a log that must replay.

    with recorded(tmp_path, {"a": weights, "b": weights}, QUEUE_HEAD_GRACE=0) as router:
        stream = Stream(router, "a", "Tell me a story.", tokens=500)
        stream.wait_for_tokens(3)

Every run is judged at its end: each request has one outcome, and every decision in the log follows from the facts.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.checks import every_request_has_one_outcome
from tests.real_router import RealRouter
from tests.replayed import replayed
from tests.standin.client import CutShort
from tests.standin.fixtures import Event, RouterProcess
from tests.standin.ledger import polls
from tests.weights.profile import Profile, profile

DEADLINE_S = 90.0
"""For anything that is waited for on a CPU: a busy machine is ten times slower than an idle one."""
CPU = profile("cpu")


class WeightsRouter(RealRouter):
    """A router whose models have weights, and llama-server options, of their own."""

    def __init__(
        self,
        folder: Path,
        models: Mapping[str, Path],
        *,
        entries: Mapping[str, Mapping[str, Any]],
        sections: Mapping[str, Mapping[str, str]],
        **more: Any,
    ) -> None:
        super().__init__(folder, next(iter(models.values())), {name: entries.get(name, {}) for name in models}, **more)
        self.sections = {name: {"model": str(weights), **sections.get(name, {})} for name, weights in models.items()}

    def configure(self) -> None:
        super().configure()
        presets = {"*": self.preset, **self.sections}
        lines = [
            line
            for name, options in presets.items()
            for line in (f"[{name}]", *(f"{option} = {value}" for option, value in options.items()))
        ]
        (self.folder / "presets.ini").write_text("\n".join(lines) + "\n")


@contextmanager
def recorded(
    folder: Path,
    models: Mapping[str, Path],
    *,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    sections: Mapping[str, Mapping[str, str]] | None = None,
    parallel: int = 2,
    context: int = 4096,
    where: Profile = CPU,
    **settings: Any,
) -> Iterator[WeightsRouter]:
    """Serve `models` (name to weights); `entries` and `sections` add to config.json and presets.ini by name.

    Without an entry a model is on GPU 0, so that they take turns. `context` is that of all slots together.
    """
    router = WeightsRouter(
        folder,
        models,
        entries=entries or {},
        sections=sections or {},
        settings=settings,
        parallel=parallel,
        context=context,
        preset=where.settings["preset"],
        top={"llama-server-executable": command} if (command := where.settings["llama_server"]) else {},
    )
    if port := where.settings["port"]:
        router.port = router.top["API-port"] = port
    with router:
        yield router
    is_accounted_for(router)


def is_accounted_for(router: RouterProcess) -> None:
    """After its end: every request has one outcome, and the log replays."""
    every_request_has_one_outcome(router)
    assert replayed(router.log_dir).decisions


def finished(router: RouterProcess, rid: int, deadline_s: float = DEADLINE_S) -> Event:
    return router.wait_event("RequestFinished", rid=rid, deadline_s=deadline_s)


def wait_for(router: RouterProcess, type_: str, count: int, gap_s: float = 0.0) -> None:
    """Until the log has so many events of this type, the last of them at least `gap_s` ago."""
    for _ in polls(DEADLINE_S, every_s=0.05):
        found = router.events(type_)
        if len(found) >= count:
            break
    assert len(found) >= count, f"no {count} x {type_} within {DEADLINE_S} s, but {len(found)}; {router.words()}"
    since = time.monotonic()
    for _ in polls(DEADLINE_S):
        if time.monotonic() - since >= gap_s:
            return


class Stream:
    """A chat whose answer is read by a thread of its own, which notes when each token came."""

    def __init__(self, router: RouterProcess, model: str, prompt: str, *, tokens: int, **body: Any) -> None:
        """Asks for exactly `tokens` tokens, at temperature 0."""
        self.token_at: list[float] = []
        """time.monotonic() of each event with text."""
        self.text = ""
        self.complete = False
        """The end came as it should: [DONE], and a proper end of the body."""
        self._news = threading.Condition()
        self._over = False
        self._call = router.call(
            "POST",
            "/v1/chat/completions",
            {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                **body,
            },
        )
        self._call.sock.settimeout(DEADLINE_S)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for_tokens(self, count: int, deadline_s: float = DEADLINE_S) -> None:
        with self._news:
            came = self._news.wait_for(lambda: len(self.token_at) >= count or self._over, deadline_s)
        assert came, f"no {count} tokens within {deadline_s} s, but {len(self.token_at)}"
        assert len(self.token_at) >= count, f"the stream ended after {len(self.token_at)} tokens: {self.text!r}"

    def wait_for_end(self, deadline_s: float = DEADLINE_S) -> "Stream":
        """Until the last byte has come. The answer must be a whole one."""
        self._thread.join(deadline_s)
        assert self.complete, f"not complete within {deadline_s} s: {len(self.token_at)} tokens, {self.text!r}"
        return self

    def leave(self) -> None:
        """Hang up, as a client that is closed in the middle of an answer."""
        self._call.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    @property
    def is_over(self) -> bool:
        return self._over

    def _read(self) -> None:
        done = False
        try:
            assert self._call.status == 200, self._call.read()
            for frame in self._call.frames():
                now = time.monotonic()
                done = done or frame == "data: [DONE]"
                if said := text_of(frame):
                    with self._news:
                        self.text += said
                        self.token_at.append(now)
                        self._news.notify_all()
            self.complete = done
        except (CutShort, OSError):
            pass
        finally:
            with self._news:
                self._over = True
                self._news.notify_all()


def text_of(frame: str) -> str:
    """The text that a frame of a chat adds; empty for any other frame."""
    if not frame.startswith("data: {"):
        return ""
    choices = json.loads(frame.removeprefix("data: "))["choices"]
    return str(choices[0]["delta"].get("content") or "") if choices else ""


def rate_of(streams: list[Stream], since: float = 0.0, until: float = float("inf")) -> float:
    """Tokens per second of all streams together, between two moments or, by default, the first and the last token."""
    moments = [at for stream in streams for at in stream.token_at if since <= at <= until]
    return (len(moments) - 1) / (max(moments) - min(moments))
