"""Models that are fetched from a hub: fetched before anything is evicted for them, by llama-server's own means.

A llama-server that its own router tells to download (environment, `LLAMA_SERVER_CHILD_MODE`) fetches what its options
name, prints how far it is, and never touches a GPU. It knows its cache, its tokens and its mirrors best, so it is asked
first, without network, whether all is there, and only then sent to fetch. A build from before that mode would start to
serve instead; the first line that says so tells that it has everything, and it is ended.

Counterparts: `replica.py` loads what is here by then; whoever takes a request for such a model waits for `ensure`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from eventlog.events import LogLine, ReplicaLoading
from router import exits, orphans, spawn
from router.config import ModelConfig
from router.process import Process
from router.surroundings import Surroundings
from router.waits import first, within

log = logging.getLogger("llama_router.download")

STATE = b"cmd_child_to_router:state:"
SERVING_SIGNS = (b"load_model: loading model", b"listening on")
GRACE_S = 2.0
TELL_S = 1.0
"""Between observations of the progress."""


class DownloadFailed(Exception):
    """The model could not be fetched; the text says why, for the client."""


_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class _Payload(msgspec.Struct, frozen=True):
    url: str = ""
    downloaded: _Bytes = 0
    total: _Bytes = 0
    result: str = ""


class _State(msgspec.Struct, frozen=True):
    payload: _Payload = _Payload()


_decoder = msgspec.json.Decoder(_State)


@dataclass(slots=True)
class _Progress:
    """Of all files of one model together; `result` is empty until llama-server has said it."""

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    result: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def taken(self) -> int:
        """Bytes."""
        return sum(done for done, _ in self.files.values())

    @property
    def value(self) -> float:
        total = sum(total for _, total in self.files.values())
        return round(min(self.taken / total, 0.99), 3) if total else -1.0

    def read(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(STATE):
                self._take(line[len(STATE) :])
            elif any(sign in line for sign in SERVING_SIGNS):
                self.result = "download_finished"
        self.news.set()

    def _take(self, text: bytes) -> None:
        try:
            payload = _decoder.decode(text).payload
        except msgspec.DecodeError:  # a build that says it in other words still says how it ends
            return
        if payload.url:
            self.files[payload.url] = (payload.downloaded, payload.total)
        self.result = payload.result or self.result


class Downloads:
    """Fetches each model at most once at a time, and asks about each only once in a run."""

    def __init__(self, around: Callable[[], Surroundings]) -> None:
        self._around = around
        self._here: set[str] = set()
        """Fingerprints of what is known to be in the cache."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_over = False

    def needed(self, model: ModelConfig) -> bool:
        """Whether `ensure` has something to do. Costs nothing."""
        return bool(model.hf_repo) and _key(model) not in self._here

    async def ensure(self, model: ModelConfig) -> None:
        """Return when the model is in llama-server's cache. Raises DownloadFailed; the next call tries again.

        Whoever stops to wait stops nothing: others may wait for the same model.
        """
        if not self.needed(model):
            return
        key = _key(model)
        task = self._tasks.get(key)
        if task is None:
            if self._is_over:
                raise DownloadFailed(f"the download of model {model.name!r} was not begun: the router stops")
            task = self._tasks[key] = asyncio.create_task(self._fetch(model), name=f"download-{model.name}")
            task.add_done_callback(lambda done: self._tasks.pop(key, None))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise DownloadFailed(f"the download of model {model.name!r} was called off") from None
            raise

    async def stop(self) -> None:
        """End all downloads and begin no more; what was fetched so far stays in the cache."""
        self._is_over = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, model: ModelConfig) -> None:
        around = self._around()
        try:
            if await self._run(model, around, ("--offline",)) is not None:
                log.info("model %r is not in the cache yet: downloading %s", model.name, model.hf_repo)
                failure = await self._run(model, around, ())
                if failure is not None:
                    raise self._failed(
                        around, f"the download of model {model.name!r} ({model.hf_repo}) failed: {failure}"
                    )
        except spawn.SpawnError as error:
            raise self._failed(around, f"the download of model {model.name!r} could not be started: {error}") from error
        finally:
            around.loop.note(ReplicaLoading(model=model.name, stage="download", value=1.0))
        self._here.add(_key(model))

    def _failed(self, around: Surroundings, text: str) -> DownloadFailed:
        """It is in the log as well, since nobody may be waiting for it any more."""
        log.warning("%s", text)
        around.loop.note(LogLine(level="warning", text=text))
        return DownloadFailed(text)

    async def _run(self, model: ModelConfig, around: Surroundings, more: Sequence[str]) -> str | None:
        """One llama-server that only downloads. None when all is there, else why it is not."""
        name = f"download {model.name}"
        endpoint = spawn.unix_endpoint(around.run_dir, around.directory)
        argv = spawn.command(around.llama_server, (*model.argv, *more), endpoint, model.name)
        marker = orphans.marker(around.directory, around.run, "download")
        env = spawn.environment(around.environ, model.env, (), endpoint.key, marker)
        env |= {"LLAMA_SERVER_CHILD_MODE": "download", "LLAMA_SERVER_ROUTER_PORT": "0"}
        progress = _Progress()
        child_log = around.logs.open(model.name, name, endpoint.key, progress.read)
        try:
            # It takes the end of its input for the end of its router.
            process = Process(spawn.start(argv, env, with_input=True), marker, child_log.feed)
            try:
                silence = await self._follow(model, around, process, progress)
            finally:
                await process.end(GRACE_S)
            if silence or progress.result == "download_finished":
                return silence
            said = [line for line in child_log.last_lines if not line.startswith(STATE.decode())]
            if progress.result:
                return exits.telling(said) or "llama-server does not say why"
            return exits.load_failure(process.exit, said).reason
        finally:
            around.logs.close(name)

    async def _follow(
        self, model: ModelConfig, around: Surroundings, process: Process, progress: _Progress
    ) -> str | None:
        """Until llama-server has said how it went or has ended; a sentence when it does neither and nothing comes."""
        stall_s = around.timings.load_stall_s
        moved_at = told_at = time.monotonic()
        while not progress.result and not process.exited.is_set():
            taken_before = progress.taken
            progress.news.clear()
            await within(min(TELL_S, stall_s), first(progress.news.wait(), process.exited.wait()))
            now = time.monotonic()
            if progress.taken > taken_before or not progress.files:
                moved_at = now
            if now - moved_at > stall_s:
                return f"nothing came for {stall_s:g} s after {progress.taken} bytes"
            if progress.files and now - told_at >= TELL_S:
                told_at = now
                note = ReplicaLoading(model=model.name, stage="download", value=progress.value, bytes=progress.taken)
                around.loop.note(note)
        return None


def _key(model: ModelConfig) -> str:
    return f"{model.name}\0" + "\0".join(model.argv)
