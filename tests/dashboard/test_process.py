"""The dashboard as a process: it follows the log, answers over its socket, and nobody else is hurt when it dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from projections.errors import QuestionFailed
from projections.sandbox import Answer
from projections.served import NotServed, ask_served
from router.cli import main
from router.places import dashboard_socket_in
from tests.mortal import mortal
from tests.projections.logs import Story, arrives, unruly_log

ROOT = Path(__file__).parents[2]


class Dashboard:
    """A process on a log of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = dashboard_socket_in(folder / "run", folder / "log")
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        options = {"--log": folder / "log", "--db": folder / "history.duckdb", "--socket": self.socket}
        arguments = [str(each) for pair in options.items() for each in pair]
        with (folder / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                mortal([sys.executable, "-m", "dashboard.process", *arguments]), stderr=stderr, cwd=ROOT
            )

    def ask(self, sql: str, **options: float) -> Answer:
        return ask_served(self.socket, sql, {}, **{"time_limit_s": 10.0, **options})  # type: ignore[arg-type]

    def until(self, sql: str, wanted: object, deadline_s: float = 30.0) -> None:
        """The first value of the answer becomes this."""

        def is_so() -> bool:
            try:
                rows = self.ask(sql).rows
            except NotServed:
                assert self.process.poll() is None, (self.folder / "stderr").read_text()
                return False
            return bool(rows) and rows[0][0] == wanted

        wait(is_so, deadline_s)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


def wait(condition: Callable[[], bool], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    unruly_log(tmp_path / "log", runs=1, requests=10)
    running = Dashboard(tmp_path)
    yield running
    if running.process.poll() is None:
        running.stop(signal.SIGKILL)


def test_what_is_written_to_the_log_is_soon_in_the_tables(dashboard: Dashboard) -> None:
    dashboard.until("SELECT count(*) FROM requests", 10)
    with Story(dashboard.folder / "log", run=2) as story:
        story.at(1e9, arrives(500, "A", 1e9))

    dashboard.until("SELECT count(*) FROM requests", 11)
    assert dashboard.stop() == 0
    assert not dashboard.socket.exists()


def test_the_command_line_asks_the_dashboard_while_it_runs_and_does_without_it_when_it_is_dead(
    dashboard: Dashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one process may write the database: were it not asked, a copy would have to be made."""
    monkeypatch.setenv("EVENT_LOG_DIR", str(dashboard.folder / "log"))
    monkeypatch.setenv("HISTORY_DB_PATH", str(dashboard.folder / "history.duckdb"))
    monkeypatch.setenv("RUN_DIR", str(dashboard.socket.parent))
    dashboard.until("SELECT count(*) FROM requests", 10)

    assert main(["sql", "SELECT count(*) AS n FROM requests", "--json"]) == 0
    assert main(["sql", "--ask", "models", "--since", "1970-01-01", "--json"]) == 0
    assert main(["sql", "SELECT nothing", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[0]) == [{"n": 10}]
    assert "copy" not in err

    dashboard.stop(signal.SIGKILL)
    assert dashboard.socket.exists()
    assert main(["sql", "SELECT count(*) AS n FROM requests", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 10}]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY requests TO '{folder}/stolen.csv'",
        "SELECT * FROM read_csv('{folder}/log/lock')",
        "SET lock_configuration = false",
        "DROP TABLE runs",
        "ATTACH '{folder}/stolen.duckdb'",
    ],
)
def test_a_question_to_the_dashboard_can_touch_nothing_else(sql: str, dashboard: Dashboard) -> None:
    dashboard.until("SELECT count(*) FROM requests", 10)

    with pytest.raises(QuestionFailed):
        dashboard.ask(sql.format(folder=dashboard.folder))
    assert not list(dashboard.folder.glob("stolen*"))


def test_a_question_without_end_stops_no_other(dashboard: Dashboard) -> None:
    dashboard.until("SELECT count(*) FROM requests", 10)

    with pytest.raises(QuestionFailed, match="interrupted"):
        dashboard.ask(
            "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x FROM r) SELECT count(*) FROM r", time_limit_s=0.3
        )
    assert dashboard.ask("SELECT 1").rows == [(1,)]


def test_only_its_owner_can_open_the_socket_and_it_runs_at_low_priority(dashboard: Dashboard) -> None:
    dashboard.until("SELECT 1", 1)

    assert dashboard.socket.stat().st_mode & 0o777 == 0o600
    assert os.getpriority(os.PRIO_PROCESS, dashboard.process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 10


def test_without_a_log_it_says_so_and_ends(tmp_path: Path) -> None:
    broken = Dashboard(tmp_path)

    assert broken.process.wait(20) == 1
    assert "cannot read the log directory" in (tmp_path / "stderr").read_text()
