"""`llama-router projections rebuild` and `llama-router sql`: make the tables, and ask them.

Neither needs a configuration or a running router; the log is enough.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from eventlog.errors import LogError
from projections.errors import DatabaseLocked, ProjectionError

if TYPE_CHECKING:
    from projections.sandbox import Answer

TABLE_ROWS = 1000


@dataclass(frozen=True)
class Found:
    """Where log and database lie if nobody names them."""

    log: Callable[[], Path]
    database: Callable[[], Path]
    socket: Callable[[], Path]
    """Of the dashboard's process, which has the database open while it runs."""


SQL_EPILOG = """\
examples:
  llama-router sql "SELECT model, count(*), avg(wait_us) / 1e6 AS wait_s FROM requests GROUP BY model"
  llama-router sql "SELECT time_of(at_us), replica, cause, last_lines FROM crashes ORDER BY seq DESC LIMIT 5"
  llama-router sql --ask waits
  llama-router sql --tables

Tables and columns: docs/tables.md, or DESCRIBE requests. Times are microseconds; time_of(us) makes a timestamp (UTC).
The table shows ..._us as durations or local times and ..._share in percent; --json and --csv have plain numbers.
Only what reads is taken, of these tables alone: no files, no settings, no extensions.

exit codes: 0 answered, 1 it could not be answered, 2 the command line is wrong
"""
REBUILD_EPILOG = """\
examples:
  llama-router projections rebuild
  llama-router projections rebuild --log /var/lib/llama-router/events --db /tmp/history.duckdb

The database is a cache of the log: deleting it loses nothing.

exit codes: 0 done, 1 it could not be done, 2 the command line is wrong
"""


def add_commands(
    verbs: Any, find_log: Callable[[], Path], find_database: Callable[[], Path], find_socket: Callable[[], Path]
) -> None:
    """Add the verbs to a command line; each sets `run(args) -> exit code`."""
    found = Found(find_log, find_database, find_socket)
    projections = verbs.add_parser(
        "projections",
        help="the tables that the log makes",
        description="The tables that the log makes: for the dashboard, and for `llama-router sql`.",
        epilog=REBUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    under = projections.add_subparsers(title="commands", metavar="COMMAND", required=True)
    rebuild = under.add_parser(
        "rebuild",
        help="make them anew from the log",
        description="Make the tables anew from the log.",
        epilog=REBUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_places(rebuild)
    rebuild.add_argument("--json", action="store_true", help="print one JSON object")
    rebuild.set_defaults(run=lambda args: _guarded(_rebuild, args, found))

    sql = verbs.add_parser(
        "sql",
        help="ask the log a question in SQL",
        description="Ask the log a question in SQL (DuckDB's).",
        epilog=SQL_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = sql.add_mutually_exclusive_group(required=True)
    what.add_argument("statement", nargs="?", metavar="SQL", help="one statement that reads; - reads it from stdin")
    what.add_argument("--ask", metavar="QUESTION", help="a question with a name; --ask help lists them")
    what.add_argument("--tables", action="store_true", help="list the tables with their columns")
    how = sql.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="a list of objects")
    how.add_argument("--csv", action="store_true", help="with a line of names")
    sql.add_argument("--since", metavar="TIME", help="for --ask: from then on (default 24h; 30m, 7d, 2026-03-01)")
    sql.add_argument("--until", metavar="TIME", help="for --ask: before then (default: now)")
    sql.add_argument("--model", default="", help="for --ask: this model only")
    sql.add_argument("--timeout", type=float, default=30.0, metavar="S", help="interrupt it after so long (30)")
    sql.add_argument("--memory", type=int, default=512, metavar="MIB", help="memory for it (512)")
    _add_places(sql)
    sql.set_defaults(run=lambda args: _guarded(_sql, args, found))


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", type=Path, metavar="DIR", help="directory of the event log")
    parser.add_argument("--db", type=Path, metavar="FILE", help="the database file")


def _guarded(run: Callable[[argparse.Namespace], int], args: argparse.Namespace, found: Found) -> int:
    # Who names a log or a database means that one, not the dashboard's.
    args.socket = found.socket() if args.log is None and args.db is None else None
    args.log = found.log() if args.log is None else args.log.expanduser()
    args.db = found.database() if args.db is None else args.db.expanduser()
    try:
        return run(args)
    except (LogError, ProjectionError, OSError) as error:
        sys.stdout.flush()
        print(f"llama-router: {error}", file=sys.stderr)
        return 1


# --- projections rebuild --------------------------------------------------------------------------------------------


def _rebuild(args: argparse.Namespace) -> int:
    from projections.database import make_room, open_database
    from projections.errors import DatabaseUnusable

    try:
        open_database(args.db).close()
    except (FileNotFoundError, DatabaseUnusable):
        pass
    except DatabaseLocked as error:
        raise ProjectionError(f"{error}; the dashboard brings it up to date by itself") from error
    fresh = args.db.with_name(args.db.name + ".new")
    begin_s = time.monotonic()
    events = _caught_up(args.log, fresh, quiet=args.json)
    took_s = time.monotonic() - begin_s
    make_room(args.db)
    fresh.replace(args.db)
    size = args.db.stat().st_size
    if args.json:
        print(json.dumps({"database": str(args.db), "events": events, "took_s": round(took_s, 3), "bytes": size}))
    else:
        print(f"{args.db}: {events} events in {took_s:.1f} s, {size / 2**20:.1f} MiB")
    return 0


def _caught_up(log: Path, database: Path, *, quiet: bool) -> int:
    """Bring a database up to date, with a bar; how many lines were applied."""
    from projections.progress import Bar
    from projections.projector import Projector

    bar = Bar(log, quiet=quiet)
    try:
        # Each stream has a thread of its own; what DuckDB would split among more of them costs more than it gains.
        with Projector(log, database, progress=bar, threads=1) as projector:
            return projector.catch_up()
    finally:
        bar.close()


# --- sql ------------------------------------------------------------------------------------------------------------


def _sql(args: argparse.Namespace) -> int:
    from projections import questions
    from projections.output import as_csv, as_json, as_table

    if args.ask == "help":
        for question in questions.all_questions():
            print(f"{question.name:<28}{question.title}")
        return 0
    statement, parameters = _question(args)
    answer = _answer(args, statement, parameters)
    if args.json:
        print(as_json(answer))
    elif args.csv:
        print(as_csv(answer))
    else:
        print(as_table(answer))
        if answer.more:
            print(f"(the first {TABLE_ROWS} rows; --csv and --json give all)", file=sys.stderr)
    return 0


def _answer(args: argparse.Namespace, statement: str, parameters: dict[str, Any]) -> "Answer":
    """From the dashboard where one runs, else from the database."""
    from projections.sandbox import ask, open_sandbox
    from projections.served import NotServed, ask_served

    limit = None if args.json or args.csv else TABLE_ROWS
    if args.socket is not None and args.socket.exists():
        with suppress(NotServed):
            return ask_served(args.socket, statement, parameters, time_limit_s=args.timeout, max_rows=limit)
    with _database(args) as database, open_sandbox(database, memory_mib=args.memory) as connection:
        return ask(connection, statement, parameters, time_limit_s=args.timeout, max_rows=limit)


def _question(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The statement and its parameters."""
    from projections import questions
    from projections.sandbox import SHOW_TABLES

    if args.tables:
        return SHOW_TABLES, {}
    if args.ask:
        question = questions.find(args.ask)
        now_us = time.time_ns() // 1000
        since_us = questions.time_us(args.since or "24h", now_us)
        until_us = questions.time_us(args.until, now_us) if args.until else now_us
        return question.sql, question.parameters(since_us=since_us, until_us=until_us, model=args.model)
    return (sys.stdin.read() if args.statement == "-" else args.statement), {}


@contextmanager
def _database(args: argparse.Namespace) -> Iterator[Path]:
    """The database, up to date; a private copy, made from the log, where the usual one cannot be written by us."""
    try:
        _caught_up(args.log, args.db, quiet=args.json or args.csv)
    except DatabaseLocked:
        told = "another process, such as a running dashboard, uses the database"
    except PermissionError as error:
        told = f"{error.filename or args.db} cannot be written: {error.strerror}"
    else:
        yield args.db
        return
    print(f"llama-router: {told}; a copy is made from the log", file=sys.stderr)
    with TemporaryDirectory(prefix="llama-router-sql-") as folder:
        copy = Path(folder) / "history.duckdb"
        _caught_up(args.log, copy, quiet=args.json or args.csv)
        yield copy
