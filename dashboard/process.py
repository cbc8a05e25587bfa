"""The dashboard's process: `python -m dashboard.process --log DIR --db FILE --socket PATH`.

It listens on a UNIX socket that only its owner can open, runs at low priority, and ends at SIGTERM. It never writes to
the log. What it serves is in `serving.py`, which is imported once the priority is low: that alone takes half a second.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from dashboard.priority import stand_back

MEMORY_MIB = 1024
BROKEN = 1


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; 1 if the tables cannot be kept."""
    parser = argparse.ArgumentParser(prog="llama-router-dashboard", description="The dashboard's own process.")
    parser.add_argument("--log", type=Path, required=True, metavar="DIR", help="directory of the event log")
    parser.add_argument("--db", type=Path, required=True, metavar="FILE", help="the database, made if need be")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="UNIX socket to listen on")
    parser.add_argument("--memory", type=int, default=MEMORY_MIB, metavar="MIB", help="memory for the database")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads for the database")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    stand_back()
    from dashboard.serving import serve
    from eventlog.errors import LogError

    try:
        failed = asyncio.run(serve(args.log, args.db, args.socket, memory_mib=args.memory, threads=args.threads))
    except LogError as error:
        print(f"llama-router dashboard: {error}", file=sys.stderr)
        return BROKEN
    return BROKEN if failed else 0


if __name__ == "__main__":
    sys.exit(main())
