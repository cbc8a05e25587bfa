"""The DuckDB file of the projections: a cache of the log that may be lost at any time.

A file that cannot be used (damaged, of another DuckDB version, of other tables, or not a database at all) makes room
for a new one. A DuckDB file is deleted; anything else is set aside beside it, since somebody may miss it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import duckdb

from projections.definitions import definitions, fingerprint
from projections.errors import DatabaseLocked, DatabaseUnusable

logger = logging.getLogger("llama_router.projections")

SET_ASIDE = ".set-aside"
MEMORY_MIB = 1024

_ABOUT = """
CREATE TABLE about (fingerprint VARCHAR, duckdb VARCHAR);
CREATE TABLE applied (stream VARCHAR, seq BIGINT, crc BIGINT);
CREATE MACRO time_of(us) AS make_timestamp(us);
CREATE MACRO not_negative(x) AS CASE WHEN x < 0 THEN 0 ELSE x END;
"""


def open_database(
    path: Path, *, memory_mib: int = MEMORY_MIB, threads: int | None = None, readable: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """The database as it is; its SQL can read these files too.

    Raises DatabaseLocked, DatabaseUnusable and, where there is none, FileNotFoundError.
    """
    path.stat()
    try:
        connection = _connect(path, memory_mib, threads, readable)
    except duckdb.Error as error:
        if "lock on file" in str(error):
            raise DatabaseLocked(f"{path} is in use by another process: {_first_line(error)}") from error
        raise DatabaseUnusable(_first_line(error)) from error
    try:
        about = connection.execute("SELECT fingerprint, duckdb FROM about").fetchone()
    except duckdb.Error as error:
        connection.close()
        raise DatabaseUnusable(_first_line(error)) from error
    if about != (fingerprint(), duckdb.__version__):
        connection.close()
        raise DatabaseUnusable("it was made by another version")
    return connection


def new_database(
    path: Path, *, memory_mib: int = MEMORY_MIB, threads: int | None = None, readable: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """An empty database with our tables, in the place of whatever was there."""
    make_room(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = _connect(path, memory_mib, threads, readable)
    connection.execute("BEGIN")
    connection.execute(_ABOUT)
    connection.execute("INSERT INTO about VALUES (?, ?)", [fingerprint(), duckdb.__version__])
    connection.execute("INSERT INTO applied VALUES ('events', 0, 0), ('observations', 0, 0)")
    for definition in sorted(definitions(), key=lambda each: each.name != "requests"):
        connection.execute(definition.parts["create"])
    connection.execute("COMMIT")
    return connection


def make_room(path: Path) -> None:
    """Delete a DuckDB file; set anything else aside."""
    if path.exists() and not _is_duckdb(path):
        aside = path.with_name(path.name + SET_ASIDE)
        path.replace(aside)
        logger.warning("%s is no DuckDB database: moved to %s", path, aside)
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".wal").unlink(missing_ok=True)


def _connect(path: Path, memory_mib: int, threads: int | None, readable: Sequence[str]) -> duckdb.DuckDBPyConnection:
    # Questions are asked of the same instance (DuckDB lets only one process write), so it can touch nothing else.
    connection = duckdb.connect(
        str(path),
        config={
            "memory_limit": f"{memory_mib}MiB",
            **({"threads": str(threads)} if threads else {}),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "allow_persistent_secrets": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute(f"SET allowed_paths = {list(readable)}")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _is_duckdb(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
