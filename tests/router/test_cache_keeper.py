"""Orders about prompt caches end in one fact each, whatever llama-server, the disk or the router itself does."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from router import cache_keeper
from router.cache_keeper import CacheKeeper
from router.cache_settings import KeepConfig
from router.config import Config, LogConfig
from router.scheduler.cache_state import Holding, ReplicaCaches
from router.scheduler.state import Replica, State
from router.upstream import Broken, Endpoint, Response

SAVE = e.CacheSaveOrdered(replica="m#0.1", slot=0, conversation="x", tokens=1000, limit_us=1_000_000)
RESTORE = e.CacheRestoreOrdered(replica="m#0.1", slot=1, conversation="x", tokens=1000, limit_us=1_000_000)


class Stage:
    """A loop with one replica of one model, and a llama-server that answers as it is told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = State(settings=SchedulerSettings(models={"m": ModelSettings(cache_shape="s")}, keep_caches=True))
        self.state.replicas["m#0.1"] = Replica(id="m#0.1", model="m", index=0, mask=1, phase="ready", slots=2)
        holding = Holding(conversation="x", tokens=1000, prefix="p", used_us=5)
        self.state.caches.replicas["m#0.1"] = ReplicaCaches(model="m", shape="s", saving={0: holding})
        self.facts: list[e.Fact] = []
        self.handlers: dict[type, Callable[..., None]] = {}
        self.subscriber: Callable[[e.Event], None] = lambda event: None
        self.folder = folder
        self.weights = folder / "m.gguf"
        self.weights.write_bytes(b"GGUF")
        self.asked: list[tuple[str, str]] = []
        self.answers: Callable[[str, str], dict[str, Any] | Exception] = self.well
        monkeypatch.setattr(cache_keeper, "fetch", self.fetch)

    def post(self, *facts: e.Fact) -> None:
        self.facts += facts

    def note(self, observation: e.Observation) -> None:
        pass

    def on(self, kind: type, handler: Callable[..., None]) -> None:
        self.handlers[kind] = handler

    def subscribe(self, callback: Callable[[e.Event], None]) -> Callable[[], None]:
        self.subscriber = callback
        return lambda: None

    async def fetch(self, endpoint: Endpoint, method: str, path: str, *, body: bytes, **others: Any) -> Response:
        action, name = path.partition("action=")[2], json.loads(body)["filename"]
        self.asked.append((action, name))
        answer = self.answers(action, name)
        if isinstance(answer, Exception):
            raise answer
        return Response(200, [], msgspec.json.encode(answer))

    def well(self, action: str, name: str) -> dict[str, Any]:
        """As a llama-server does."""
        path = next(self.folder.glob("llama-router-*")) / name
        if action == "save":
            path.write_bytes(b"x" * 4000)
            return {"n_saved": 999, "n_written": 4000}
        return {"n_restored": 999, "n_read": 4000}

    def keeper(self, **keep: Any) -> CacheKeeper:
        config = Config(
            host="127.0.0.1",
            port=0,
            models={},
            scheduler=self.state.settings,
            llama_server=("llama-server",),
            llama_server_from="path",
            log_dir=self.folder / "log",
            log=LogConfig(),
            run_dir=self.folder,
            state_dir=self.folder,
            history_db=self.folder / "h",
            keep=KeepConfig(**{"on": True, "directory": self.folder, **keep}),
        )
        made = CacheKeeper(self, config, lambda replica: Endpoint(path="/nowhere.sock"))
        self.loaded()
        return made

    def loaded(self) -> None:
        self.subscriber(e.ReplicaReady(replica="m#0.1", slots=2, build="b1", model_path=str(self.weights)))

    def ordered(self, keeper: CacheKeeper, *orders: e.Decision) -> None:
        """Each is carried out before the next."""

        async def run() -> None:
            for order in orders:
                self.handlers[type(order)](order)
                async with asyncio.timeout(5):
                    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
                        await asyncio.sleep(0)

        asyncio.run(run())

    def words(self) -> list[str]:
        return [f"{type(fact).__name__} {getattr(fact, 'reason', '')}".strip() for fact in self.facts]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_a_save_and_a_restore_are_told_with_what_they_moved(stage: Stage) -> None:
    stage.ordered(stage.keeper(), SAVE, RESTORE)
    saved, restored = stage.facts
    assert isinstance(saved, e.CacheSaved)
    assert isinstance(restored, e.CacheRestored)
    assert (saved.slot, saved.tokens, saved.bytes) == (0, 999, 4000)
    assert (restored.slot, restored.tokens, restored.bytes) == (1, 999, 4000)
    assert stage.asked[0][1] != stage.asked[1][1]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"n_saved": 999, "n_written": 3000}, "the file has 0 bytes, not 3000"),
        ({"n_saved": 40, "n_written": 4000}, "the slot holds 40 tokens, not 1000"),
        ({"n_saved": "many"}, "llama-server's answer cannot be read"),
        (TimeoutError(), "it took longer than a swap may be held up"),
        (KeyError("m#0.1"), "its process is gone"),
        (Broken("connection closed"), "connection closed"),
        (ZeroDivisionError("a mistake"), "an error of the router: ZeroDivisionError('a mistake')"),
    ],
)
def test_a_save_that_ends_otherwise_has_failed_once(stage: Stage, answer: Any, reason: str) -> None:
    stage.answers = lambda action, name: answer
    stage.ordered(stage.keeper(), SAVE)
    (word,) = stage.words()
    assert word.startswith(f"CacheSaveFailed {reason}")
    assert isinstance(stage.facts[0], e.CacheSaveFailed)
    assert stage.facts[0].broke == isinstance(answer, Broken)
    assert not list(stage.folder.glob("llama-router-*/*"))


def test_a_restore_that_brings_back_less_is_none_and_its_file_goes(stage: Stage) -> None:
    keeper = stage.keeper()
    stage.ordered(keeper, SAVE)
    stage.answers = lambda action, name: {"n_restored": 7}
    stage.ordered(keeper, RESTORE, RESTORE)
    assert stage.words()[1:] == [
        "CacheRestoreFailed 7 tokens came back, not 999",
        "CacheRestoreFailed there is no such file any more",
    ]


def test_weights_that_were_replaced_while_serving_are_other_weights(stage: Stage) -> None:
    """The configuration is the same, and so is the path; the file behind it is not."""
    keeper = stage.keeper()
    stage.ordered(keeper, SAVE)
    stage.weights.unlink()
    stage.weights.write_bytes(b"GGUF and more")
    stage.loaded()
    stage.ordered(keeper, RESTORE)
    assert stage.words()[1].startswith("CacheRestoreFailed it was saved under other weights")
    assert [action for action, _ in stage.asked] == ["save"]


def test_weights_that_cannot_be_looked_at_are_not_trusted(stage: Stage) -> None:
    keeper = stage.keeper()
    stage.weights.unlink()
    stage.loaded()
    stage.ordered(keeper, SAVE)
    assert stage.words() == ["CacheSaveFailed its weights cannot be told from others"]


def test_an_order_for_what_is_gone_is_answered(stage: Stage) -> None:
    keeper = stage.keeper()
    stage.state.caches.replicas.clear()
    stage.state.replicas.clear()
    stage.ordered(keeper, SAVE, RESTORE)
    assert stage.words() == [
        "CacheSaveFailed it is not wanted any more",
        "CacheRestoreFailed it is not wanted any more",
    ]


def test_files_of_a_model_that_is_given_up_go_and_that_is_told(stage: Stage) -> None:
    stage.ordered(stage.keeper(), SAVE, e.CacheGivenUp(model="m", why="brings_nothing"))
    assert stage.facts[1] == e.CacheDropped(model="m", conversation="x", bytes=4000, why="given_up")


def test_switched_off_it_makes_nothing(stage: Stage) -> None:
    keeper = stage.keeper(on=False)
    assert keeper.directory is None
    stage.ordered(keeper, SAVE)
    assert stage.words() == ["CacheSaveFailed prompt caches are not kept any more"]
    assert not list(stage.folder.glob("llama-router-*"))
