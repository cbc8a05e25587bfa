"""Verbs that ask a running router: status, models, load, unload, cancel, gpu. Counterpart: `router.api`."""

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from router.places import router_url
from router.status_table import render_models, render_status

URL_VARIABLE = "LLAMA_ROUTER_URL"
KEY_VARIABLE = "LLAMA_ROUTER_API_KEY"
WATCH_S = 1.0
CONNECT_S = 5.0
CLEAR = "\x1b[H\x1b[2J"
LINE_AGAIN = "\r\x1b[K"
LOOK_S = 0.5
"""Between looks at how far a load is."""


class Refused(Exception):
    """The router said no, or is not there; the message is for the person at the terminal."""


def add_admin_commands(verbs: Any) -> None:
    """Add the verbs to the command line."""
    status = _verb(
        verbs,
        "status",
        _status,
        "what is loaded, what is being loaded, what waits and for what",
        "llama-router status --watch\n  llama-router status --json | jq .queue",
    )
    status.add_argument("-w", "--watch", action="store_true", help="show it again every second")
    status.add_argument("--json", action="store_true", help="print the router's own JSON")

    models = _verb(verbs, "models", _models, "the models that can be asked for", "llama-router models --json")
    models.add_argument("--json", action="store_true", help="print the router's own JSON")

    load = _verb(
        verbs,
        "load",
        _load,
        "load a model before anybody asks for it",
        "llama-router load qwen3-8b --wait && echo ready",
    )
    load.add_argument("model")
    load.add_argument("--wait", action="store_true", help="return when it is loaded or has failed")

    unload = _verb(
        verbs,
        "unload",
        _unload,
        "unload a model once its requests are done",
        "llama-router unload qwen3-8b\n  llama-router unload qwen3-8b --force\n  llama-router unload --all",
    )
    unload.add_argument("model", nargs="?")
    unload.add_argument("--all", action="store_true", help="every model")
    unload.add_argument("--force", action="store_true", help="cut what is running, fail what waits")

    profile = _verb(
        verbs,
        "profile",
        _profile,
        "which profile is in force; switch to another",
        "llama-router profile\n  llama-router profile coding\n  llama-router profile --none",
    )
    profile.add_argument("profile", nargs="?", help="switch to it")
    profile.add_argument("--none", action="store_true", help="switch to none")

    _verb(
        verbs,
        "reload",
        _reload,
        "read the configuration again",
        "llama-router reload && echo in force",
    )

    cancel = _verb(verbs, "cancel", _cancel, "end a request in its client's place", "llama-router cancel 1207")
    cancel.add_argument("rid", type=int, metavar="REQUEST")

    gpu = _verb(
        verbs,
        "gpu",
        _gpu,
        "take a GPU out of service, or back",
        "llama-router gpu out 1     drain and unload what is on GPU 1\n  llama-router gpu in 1",
    )
    gpu.add_argument("action", choices=["out", "in"])
    gpu.add_argument("gpu", type=int)


def _verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], int], does: str, examples: str) -> Any:
    parser = verbs.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=f"examples:\n  {examples}\n\nexit codes: 0 done, 1 the router refused or is not there, "
        "2 the command line is wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help=f"the router's address (default: ${URL_VARIABLE}, else as configured)")
    parser.set_defaults(run=lambda args: _told(run, args))
    return parser


def _told(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    args.url = args.url or os.environ.get(URL_VARIABLE) or router_url()
    try:
        return run(args)
    except Refused as refusal:
        print(f"llama-router: {refusal}", file=sys.stderr)
        return 1


def _ask(args: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    import httpx  # here, because `serve` passes through this module and has no time for it

    key = os.environ.get(KEY_VARIABLE, "")
    headers = {b"Authorization": b"Bearer " + os.fsencode(key)} if key else {}
    url = args.url if "://" in args.url else f"http://{args.url}"
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(None, connect=CONNECT_S)) as client:
            answer = client.request(method, path, json=body)
    except httpx.InvalidURL as error:
        raise Refused(f"{url!r} is no address ({error}); one is written http://HOST:PORT") from error
    except httpx.TransportError as error:
        raise Refused(f"no router answers at {url} ({error}); is `llama-router serve` running?") from error
    try:
        content = answer.json()
    except ValueError as error:
        raise Refused(f"{url} answered {answer.status_code} with something that is not JSON") from error
    if answer.is_error:
        told = content.get("error") if isinstance(content, dict) else None
        message = told.get("message") if isinstance(told, dict) else None
        message = message or f"{url} answered {answer.status_code}; is that llama-router?"
        if answer.status_code == 401:
            message += f"; these commands take it from the environment variable {KEY_VARIABLE}"
        raise Refused(message)
    return content


def _status(args: argparse.Namespace) -> int:
    while True:
        status = _ask(args, "GET", "/status")
        if "gpus" not in status:
            raise Refused(f"it is not llama-router that answers at {args.url}")
        text = json.dumps(status, indent=2) if args.json else render_status(status, args.url)
        if not args.watch:
            print(text)
            return 0
        print(f"{CLEAR if sys.stdout.isatty() else ''}{text}", flush=True)
        time.sleep(WATCH_S)


def _models(args: argparse.Namespace) -> int:
    models = _ask(args, "GET", "/models")
    print(json.dumps(models, indent=2) if args.json else render_models(models))
    return 0


def _load(args: argparse.Namespace) -> int:
    def ask() -> None:
        _ask(args, "POST", "/models/load", {"model": args.model, "wait": args.wait})

    if args.wait and sys.stderr.isatty():
        _show_progress(args, ask)
    else:
        ask()
    print(f"{args.model} is {'loaded' if args.wait else 'being loaded'}")
    return 0


def _show_progress(args: argparse.Namespace, ask: Callable[[], None]) -> None:
    """Do it, and show meanwhile how far the load is. What it raises is raised."""
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            ask()
        except Exception as error:
            ended.put(error)
        else:
            ended.put(None)

    # Nobody waits for it at the end: Ctrl-C ends the command, and the load goes on.
    threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            failure = ended.get(timeout=LOOK_S)
            break
        except queue.Empty:
            print(f"{LINE_AGAIN}{args.model}: {_how_far(args)}", end="", file=sys.stderr, flush=True)
    print(LINE_AGAIN, end="", file=sys.stderr, flush=True)
    if failure is not None:
        raise failure


def _how_far(args: argparse.Namespace) -> str:
    try:
        status = _ask(args, "GET", f"/v1/models/{quote(args.model, safe='')}")["status"]
    except Refused:
        return "waiting"
    progress = status.get("progress") or {}
    value = "" if progress.get("value") is None else f" {progress['value']:.0%}"
    return f"{progress.get('current') or 'waiting for its turn'}{value}"


def _unload(args: argparse.Namespace) -> int:
    if args.all == bool(args.model):
        raise Refused("name one model, or say --all")
    if not args.force:
        _say_what_is_waited_for(args, lambda row: args.all or row["name"] == args.model)
    if args.all:
        _ask(args, "POST", f"/router/drain?wait=true&force={'true' if args.force else 'false'}")
        print("every model is unloaded")
        return 0
    _ask(args, "POST", "/models/unload", {"model": args.model, "force": args.force, "wait": True})
    print(f"{args.model} is unloaded")
    return 0


def _profile(args: argparse.Namespace) -> int:
    if args.none and args.profile:
        raise Refused("name a profile, or say --none")
    if args.none or args.profile:
        told = _ask(args, "PUT", "/api/profiles/active", {"profile": args.profile})
        print(f"profile {told['active']} is in force" if told["active"] else "no profile is in force")
        return 0
    told = _ask(args, "GET", "/api/profiles")
    if not told["profiles"]:
        print("no profiles are configured (`profiles` in config.json)")
    for profile in told["profiles"]:
        pins = ", ".join(f"{asked} = {target or 'none'}" for asked, target in profile["pins"].items())
        print(f"{'*' if profile['name'] == told['active'] else ' '} {profile['name']}: {pins}")
    return 0


def _reload(args: argparse.Namespace) -> int:
    told = _ask(args, "POST", "/router/reload")
    kinds = (
        ("changed", "settings"),
        ("models added", "added"),
        ("models removed", "removed"),
        ("models changed", "changed"),
    )
    words = [f"{words}: {', '.join(told[kind])}" for words, kind in kinds if told[kind]]
    print(f"the configuration is in force ({'; '.join(words) or 'nothing changed'})")
    for name in told["needs_restart"]:
        print(f"a new {name} takes effect when the router is started again")
    for warning in told["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _cancel(args: argparse.Namespace) -> int:
    _ask(args, "POST", f"/api/inflight/{args.rid}/cancel")
    print(f"request {args.rid} is cancelled")
    return 0


def _gpu(args: argparse.Namespace) -> int:
    if args.action == "out":
        _say_what_is_waited_for(args, lambda row: args.gpu in row["gpus"])
    _ask(args, "POST", f"/router/gpus/{args.gpu}/{args.action}?wait=true")
    print(f"GPU {args.gpu} is {'out of service' if args.action == 'out' else 'in service'}")
    return 0


def _say_what_is_waited_for(args: argparse.Namespace, concerns: Callable[[Any], bool]) -> None:
    """A drain can take as long as the requests of its models, as `/status` has them now; nothing where none runs."""
    models = _ask(args, "GET", "/status?limit=0")["models"]
    requests = sum(row["in_flight"] for row in models if concerns(row))
    if requests:
        print(f"waiting for {requests} request{'s' if requests > 1 else ''}", file=sys.stderr, flush=True)
