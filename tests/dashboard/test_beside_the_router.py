"""`serve` and its dashboard: started, proxied, started again when it dies, gone with the router."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli import main
from router.places import dashboard_socket_in
from router.proc import command, every, stat
from tests.standin.client import Call, CutShort
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

STREAM = "/dash/api/stream"


class WithDashboard(RouterProcess):
    """A router on stand-ins, with its dashboard."""

    def __init__(self, folder: Path, *models: Model) -> None:
        super().__init__(folder, models or [Model("a", tokens=5)], DASHBOARD=True)
        self.socket = dashboard_socket_in(folder / "run", self.log_dir)

    def dashboard(self) -> int:
        """The pid of its dashboard, once there is one that has executed."""
        assert self.process
        for _ in polls(10, every_s=0.02):
            for found in every():
                if found.parent == self.process.pid and "--socket" in command(found.pid):
                    return found.pid
        raise AssertionError(f"no dashboard runs:\n{self.words()}")

    def until_ready(self, deadline_s: float = 60.0) -> None:
        for _ in polls(deadline_s, every_s=0.05):
            if self.call("GET", "/dash").status == 200:
                return
        raise AssertionError(f"the dashboard does not answer:\n{self.words()}")


@pytest.fixture
def router(tmp_path: Path) -> Iterator[WithDashboard]:
    with WithDashboard(tmp_path) as running:
        yield running


def gone(pid: int, deadline_s: float = 10.0) -> bool:
    return any((found := stat(pid)) is None or not found.alive for _ in polls(deadline_s))


def test_while_it_starts_a_browser_is_told_to_wait_and_then_gets_the_page(router: WithDashboard) -> None:
    """The page that waits needs nothing but itself, and reloads; a program gets JSON. `/` leads to the page."""
    early = router.call("GET", "/dash", Accept="text/html,*/*")
    if early.status == 503:  # it may be faster than we are
        page = early.read().decode()
        assert early.header("retry-after")
        assert 'http-equiv="refresh"' in page
        assert "script" not in page
    router.until_ready()

    root = router.call("GET", "/")
    assert (root.status, root.header("location")) == (307, "dash")
    assert b"<html" in router.call("GET", "/dash", Accept="text/html").read()
    head = router.call("HEAD", "/dash")
    assert (head.status, head.read()) == (200, b"")
    assert router.call("GET", "/dash/nothing/there").status == 404


def test_it_starts_again_when_it_dies_and_its_last_words_are_in_the_diary(router: WithDashboard) -> None:
    router.until_ready()
    first = router.dashboard()
    os.kill(first, signal.SIGKILL)

    router.wait_words("the dashboard has ended (ended by SIGKILL)")
    refused = router.call("GET", "/dash")
    assert refused.status == 503
    assert refused.json()["error"]["code"] == "service_unavailable"
    router.until_ready()
    assert router.dashboard() != first
    assert router.chat("a").status == 200


def test_a_stream_of_events_comes_as_it_is_made_and_ends_when_its_reader_leaves(router: WithDashboard) -> None:
    router.until_ready()
    stream = router.call("GET", STREAM)
    frames = stream.frames()
    assert stream.header("content-type").startswith("text/event-stream")
    assert stream.header("x-accel-buffering") == "no"
    assert next(frames).startswith("retry:")

    assert router.chat("a").status == 200
    seen: set[str] = set()
    while not {"requests", "replicas"} <= seen:
        frame = next(frames)
        assert "event: changed" in frame
        seen |= set(json.loads(frame.partition("data: ")[2])["tables"])
    assert connections_of(router) == 1
    stream.close()
    assert any(connections_of(router) == 0 for _ in polls(30))


def connections_of(router: WithDashboard) -> int:
    """Sockets that its dashboard has besides the one it listens on and those of its event loop."""
    pid = router.dashboard()
    path = str(router.socket)
    ours = {line.split()[6] for line in unix_sockets() if line.endswith(path) and line.split()[5] == "03"}
    held = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    return len(ours & held)


def unix_sockets() -> list[str]:
    return Path("/proc/net/unix").read_text().splitlines()


def test_its_death_cuts_the_pages_that_read_from_it_and_no_stream_of_a_model(tmp_path: Path) -> None:
    with WithDashboard(tmp_path, Model("a", tokens=30, gap_s=0.03)) as router:
        router.until_ready()
        page = router.call("GET", STREAM)
        assert next(page.frames())
        chat = router.chat("a", stream=True)
        chunks = chat.chunks()
        assert next(chunks)
        os.kill(router.dashboard(), signal.SIGKILL)

        assert len(list(chunks)) == 29
        with pytest.raises(CutShort):
            list(page.frames())


def test_it_ends_with_the_router_by_a_signal_and_by_a_kill(tmp_path: Path) -> None:
    """And the next router starts one of its own, on the same file."""
    with WithDashboard(tmp_path) as router:
        router.until_ready()
        first = router.dashboard()
        assert router.stop() == 0
        assert gone(first, 0)
        assert not router.socket.exists()

        router.start()
        second = router.dashboard()
        router.kill()
        assert gone(second)

        router.start()
        router.until_ready()
        assert router.dashboard() not in (first, second)


def test_open_pages_do_not_hold_up_the_end_of_the_router(router: WithDashboard) -> None:
    router.until_ready()
    page = router.call("GET", STREAM)
    assert next(page.frames())

    assert router.stop() == 0


def test_a_dashboard_that_cannot_start_is_tried_again_and_hurts_nobody(tmp_path: Path) -> None:
    """Its database is to lie where nothing can be made; after the owner has put that right, it comes up."""
    blocked = tmp_path / "state"
    blocked.mkdir()
    (blocked / "in-the-way").write_text("")
    router = WithDashboard(tmp_path)
    router.env["HISTORY_DB_PATH"] = str(blocked / "in-the-way" / "history.duckdb")
    with router:
        router.wait_words("the dashboard has ended (exit code 1)")
        assert router.chat("a").status == 200
        (blocked / "in-the-way").unlink()
        router.until_ready()


def test_switched_off_there_is_none_and_its_page_says_so(tmp_path: Path) -> None:
    with RouterProcess(tmp_path, [Model("a")]) as router:
        page = router.call("GET", "/dash", Accept="text/html")
        assert page.status == 404
        assert "DASHBOARD" in page.read().decode()
        assert router.call("GET", "/dash").json()["error"]["code"] == "not_found"
        assert not dashboard_socket_in(tmp_path / "run", router.log_dir).exists()


def test_the_command_line_asks_the_dashboard_of_the_running_router(
    router: WithDashboard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the database; the socket is found by the same variables as the router's."""
    router.until_ready()
    for name in ("EVENT_LOG_DIR", "RUN_DIR", "LLAMA_ROUTER_STATE_DIR"):
        monkeypatch.setenv(name, router.env[name])

    assert main(["sql", "SELECT count(*) AS n FROM runs", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == [{"n": 1}]
    assert "copy" not in err


def test_what_a_page_sends_is_bounded_and_a_client_that_never_sends_is_let_go(router: WithDashboard) -> None:
    router.until_ready()
    large = router.call("POST", "/dash/api/anything", b"x" * (1 << 20) + b"x")
    assert (large.status, large.json()["error"]["code"]) == (413, "body_too_large")
    with socket.create_connection(router.address) as raw:
        raw.sendall(b"POST /dash/api/anything HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nxxx")
    assert Call(router.address, "GET", "/dash").status == 200
