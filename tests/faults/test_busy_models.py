"""Several models on one GPU: nobody's work is cut for another's, and everybody gets a turn."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checks import processes_of, routed
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model, RouterProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """Two models, one GPU, room for one of them."""
    models = [Model("a", tokens=12, gap_s=0.02), Model("b", tokens=1)]
    with routed(tmp_path_factory.mktemp("pair"), models, gpu_cap=1) as router:
        yield router
        assert router.memory.violations() == []


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_is_whole_before_its_model_leaves_for_another(pair: RouterProcess, path: str) -> None:
    """A streams when B is asked for. A delivers every token; only then does B's process begin."""
    stream = pair.post(path, "a", stream=True, standin={"tag": f"a {path}"})
    pair.ledger.wait_for("first_chunk", tag=f"a {path}")
    other = pair.chat("b", standin={"tag": f"b {path}"})
    assert len(list(stream.chunks())) == 12
    assert other.status == 200
    started = pair.ledger.wait_for("request_start", tag=f"b {path}")
    began = max(line["mono_us"] for line in processes_of(pair, "b") if line["pid"] == started["pid"])
    assert began >= pair.ledger.events("chunk", tag=f"a {path}")[-1]["mono_us"]


@pytest.mark.parametrize("path", ROUTES + WHOLE_ROUTES)
def test_an_answer_in_one_piece_is_not_cut_either(pair: RouterProcess, path: str) -> None:
    """The same for a request that does not stream: nothing to see on the wire, yet work in flight."""
    whole = pair.post(path, "a", standin={"tag": f"w {path}"})
    pair.ledger.wait_for("slot_taken", tag=f"w {path}")
    other = pair.chat("b")
    assert whole.status == 200
    assert whole.read()
    assert other.status == 200


def test_a_model_that_is_still_loading_is_not_killed_for_another(tmp_path: Path) -> None:
    """B is asked for while A loads: A's load is finished and pays out before A makes room."""
    with routed(tmp_path, [Model("a", load_s=0.6), Model("b")], gpu_cap=1) as router:
        first = router.chat("a")
        router.ledger.wait_for("started")
        second = router.chat("b")
        assert (first.status, second.status) == (200, 200)
        only_a = processes_of(router, "a")
        assert len(only_a) == 1
        end = router.ledger.events("request_end", pid=only_a[0]["pid"])[0]
        assert router.ledger.wait_for("sigterm", pid=only_a[0]["pid"])["mono_us"] >= end["mono_us"]
        assert router.memory.violations() == []


def test_cold_models_asked_for_at_once_all_answer_with_text(tmp_path: Path) -> None:
    """A and B by turns a twentieth of a second apart, both cold: no load is wasted, no answer is empty."""
    with routed(tmp_path, [Model("a"), Model("b")], gpu_cap=1) as router:
        calls = []
        for turn in range(6):
            calls.append(router.chat("ab"[turn % 2]))
            time.sleep(0.05)
        for call in calls:
            assert call.status == 200
            assert "w1 w2" in call.json()["choices"][0]["message"]["content"]
        for process in router.ledger.events("started"):
            assert router.ledger.events("request_end", pid=process["pid"]), "a load that served nobody"
        assert router.memory.violations() == []


def test_alternating_models_keep_their_order_at_grace_0(tmp_path: Path) -> None:
    """Strict order is the default: A B A B A B costs six loads and ends in the order of arrival."""
    with routed(tmp_path, [Model("a"), Model("b")], gpu_cap=1) as router:
        calls = [router.chat("ab"[turn % 2], standin={"tag": str(turn)}) for turn in range(6)]
        assert [call.status for call in calls] == [200] * 6
        assert [line["tag"] for line in router.ledger.wait_for_count(6, "request_end")] == list("012345")
        assert len(router.ledger.events("started")) == 6


def test_grace_batches_alternating_models(tmp_path: Path) -> None:
    """The same traffic with a grace: the later requests of the loaded model pass, two loads do."""
    with routed(tmp_path, [Model("a", gap_s=0.01), Model("b", gap_s=0.01)], gpu_cap=1, QUEUE_HEAD_GRACE=20) as router:
        calls = [router.chat("ab"[turn % 2]) for turn in range(12)]
        assert [call.status for call in calls] == [200] * 12
        assert len(router.ledger.events("started")) == 2


def test_steady_traffic_of_one_model_does_not_starve_another(tmp_path: Path) -> None:
    """Somebody always waits for A; B waits its grace and then goes next."""
    models = [Model("a", slots=2, tokens=5, gap_s=0.02), Model("b")]
    with routed(tmp_path, models, gpu_cap=1, QUEUE_HEAD_GRACE=1) as router:
        busy = [router.chat("a") for _ in range(4)]
        router.ledger.wait_for("slot_taken")
        begun = time.monotonic()
        other = router.chat("b", standin={"tag": "b"})
        while not router.ledger.events("request_start", tag="b"):
            assert busy.pop(0).status == 200
            busy.append(router.chat("a"))
            assert time.monotonic() - begun < 60, "B starves"
        assert other.status == 200
        assert time.monotonic() - begun > 0.9
        assert [call.status for call in busy] == [200] * 4


def test_two_presets_of_one_file_are_two_models(tmp_path: Path) -> None:
    """The same GGUF under two names: each is served by a process of its own name, never by the other's."""
    shared = str(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_text("{}")
    models = [Model("x-short", preset={"model": shared}), Model("x-long", preset={"model": shared, "ctx-size": "8192"})]
    with routed(tmp_path, models, gpu_cap=1) as router:
        for name in ("x-short", "x-long", "x-short"):
            call = router.chat(name, standin={"tag": name})
            pid = int(call.header("x-standin-pid"))
            argv = router.ledger.events("started", pid=pid)[0]["argv"]
            assert argv[argv.index("--alias") + 1] == name


def test_two_hundred_requests_to_a_cold_model_are_queued_and_all_answered(tmp_path: Path) -> None:
    """One slot, every route, all at once: no 429, no 503, and never two at a time inside the server."""
    routes = ROUTES + WHOLE_ROUTES
    with routed(tmp_path, [Model("a", tokens=2, load_s=0.3)]) as router:
        calls = [router.post(routes[n % len(routes)], "a", stream=n % 3 == 0) for n in range(200)]
        assert {call.status for call in calls} == {200}
        assert all(call.read() for call in calls)
        assert len(router.ledger.events("started")) == 1
