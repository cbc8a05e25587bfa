"""`llama-router key`: makes API keys, and the hashes that config.json may hold in their place. Asks no router."""

import argparse
import getpass
import json
import secrets
import sys
from typing import Any

from router.model_entry import instant, key_digest
from router.settings import BadValue

KEY_BYTES = 32
PREFIX = "lr-"
"""By which people, and programs that look for leaked keys, know one."""

NEW_EXAMPLES = """\
  llama-router key new alice
  llama-router key new owner --admin
  llama-router key new guest --models qwen3-4b --rpm 20 --expires 2027-01-31
"""
EXIT_CODES = "exit codes: 0 done, 1 there is no key on stdin, 2 the command line is wrong"


def add_key_command(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "key",
        help="make an API key, or the hash of one",
        description="Make API keys. config.json needs only their hash.",
        epilog=f"examples:\n{NEW_EXAMPLES}  llama-router key hash\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = below.add_parser(
        "new",
        help="make a key; it is shown once",
        description="Make a key; it is shown once. Nothing is written: the lines for config.json are printed.",
        epilog=f"examples:\n{NEW_EXAMPLES}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("name", help="whose key it is; stands in the log and on the dashboard")
    new.add_argument("--admin", action="store_true", help="may load, unload, stop, reload and cancel")
    new.add_argument("--models", metavar="NAMES", default="", help="those that it may use, with commas between them")
    new.add_argument("--priority", type=int, default=0)
    new.add_argument("--max-parallel", type=int, default=0, metavar="N", help="requests in flight at once; more wait")
    new.add_argument("--rpm", type=int, default=0, metavar="N", help="requests per minute; more are refused")
    new.add_argument("--tpm", type=int, default=0, metavar="N", help="tokens per minute")
    new.add_argument("--expires", metavar="DAY", default="", help="day or moment from which on it is not taken")
    new.add_argument("--json", action="store_true", help="one JSON object on stdout")
    new.set_defaults(run=_new)
    hashed = below.add_parser(
        "hash",
        help="the hash of a key that is there already",
        description="Read a key from stdin, or ask for it at a terminal, and print its hash for config.json.",
        epilog=f"examples:\n  llama-router key hash\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hashed.set_defaults(run=_hash)


def _new(args: argparse.Namespace) -> int:
    if args.expires:
        try:
            instant(args.expires)
        except BadValue as error:
            print(f"llama-router: --expires {args.expires}: {error}", file=sys.stderr)
            return 2
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    limits = {
        "admin": args.admin,
        "models": [name.strip() for name in args.models.split(",") if name.strip()],
        "priority": args.priority,
        "max_parallel": args.max_parallel,
        "rpm": args.rpm,
        "tpm": args.tpm,
        "expires": args.expires,
    }
    entry = {"key": f"sha256:{key_digest(key)}"} | {name: value for name, value in limits.items() if value}
    if args.json:
        print(json.dumps({"name": args.name, "key": key, "entry": entry}))
    else:
        print(f"{args.name}'s key, shown this once:\n\n  {key}\n\nunder `keys` of config.json:\n")
        print(f"  {json.dumps(args.name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}")
    return 0


def _hash(args: argparse.Namespace) -> int:
    # Never as an argument: everybody on the machine can read a command line.
    key = getpass.getpass("key: ") if sys.stdin.isatty() else sys.stdin.readline()
    key = key.strip()
    if not key:
        print("llama-router: there is no key on stdin", file=sys.stderr)
        return 1
    print(f"sha256:{key_digest(key)}")
    return 0
