"""`llama-router demo`: the whole product on any machine, in a minute.

Real weights (SmolLM2, 135 million parameters) under three names, on two GPUs that are only declared: a machine without
a GPU runs it as well, since a mask that names nothing hurts nobody. A burst of requests forces swaps; the table
afterwards is read from the event log, not from the clients.

It keeps to itself: all that its router writes is in a folder of its own, which goes with it, and so does the router,
however the demo ends.
"""

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventlog import events as e
from eventlog.reader import read
from router.admin_commands import URL_VARIABLE
from router.places import socket_fits
from router.ports import PortTaken, holder, listen
from router.settings import ENV_PREFIX, SETTINGS
from router.text_table import aligned
from router.weights import WeightsUnavailable, demo_weights

if TYPE_CHECKING:
    import httpx

MODELS = {"smol-chat": [0], "smol-code": [0], "smol-sum": [1]}
"""Two share GPU 0 and swap; the third has GPU 1 for itself."""
PROMPTS = (
    "Name three rivers of Europe.",
    "Write a line of Python that adds two numbers.",
    "What is a llama?",
    "Say hello in French.",
)
REQUESTS = 12
TOKENS = 48
START_S = 60.0
TOLD_S = 5.0
STOP_S = 40.0
DEFAULT_PORT = 11434
FOLDER_PREFIX = "llama-router-demo-"
ENDED_BY = (signal.SIGTERM, signal.SIGHUP)
"""As Ctrl-C does, which asyncio sees to."""
_MORTAL = str(Path(__file__).with_name("exec_child.py"))
_SETTING_VARIABLES = frozenset(setting.legacy_env for setting in SETTINGS if setting.legacy_env)


def add_demo_command(verbs: Any) -> None:
    parser = verbs.add_parser(
        "demo",
        help="try it: small weights, three models, two pretended GPUs",
        description="Start a router with three small models on two declared GPUs, send a burst that makes it swap, "
        "show from the event log what happened, and keep serving.",
        epilog="examples:\n  llama-router demo\n  llama-router demo --once   end after the burst\n\n"
        "exit codes: 0 every request was answered in full, 1 not, 2 the command line is wrong",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--once", action="store_true", help="end after the burst")
    parser.add_argument("-n", "--requests", type=int, default=REQUESTS, help=f"size of the burst (default {REQUESTS})")
    parser.add_argument("--port", type=int, default=0, help=f"port (default {DEFAULT_PORT}, or a free one if taken)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    try:
        weights = demo_weights(progress=_progress)
    except WeightsUnavailable as error:
        print(f"llama-router: {error}", file=sys.stderr)
        return 1
    home = _folder()
    try:
        return asyncio.run(_demo(args, weights, home))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _folder() -> Path:
    """A folder for all that the demo writes, sockets included, so its path has to be short."""
    home = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    if socket_fits(home / "run"):
        return home
    home.rmdir()
    return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir="/tmp"))


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() or done == total:
        print(
            f"\rweights: {done / 1e6:.0f} of {total / 1e6:.0f} MB", end="\n" if done == total else "", file=sys.stderr
        )


async def _demo(args: argparse.Namespace, weights: Path, home: Path) -> int:
    port = args.port or _free_port()
    ours = _configure(home, weights, port)
    _end_at_signals()
    serve = (sys.executable, "-m", "router.cli", "serve")
    router = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", _MORTAL, str(os.getpid()), *serve),
        env={**_without_settings(os.environ), **ours},
        stdin=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        if not await _is_up(url, router):
            print("llama-router: the router did not start; its messages are above", file=sys.stderr)
            return 1
        print(f"serving at {url}/v1 ({', '.join(MODELS)}); watch it at {url}/dash", flush=True)
        print(f"sending {args.requests} requests at once ...", flush=True)
        answered = await _burst(url, args.requests)
        print(_table(await _told(home / "events")), flush=True)
        complete = answered == args.requests
        print(f"{answered} of {args.requests} requests were answered in full", flush=True)
        if not args.once:
            print(f"still serving; look at {url}/dash, or try:\n  {_example(url)}\n{_export(url, ours)}", flush=True)
            print("Ctrl-C ends it and removes what it wrote", flush=True)
            await router.wait()
        return 0 if complete else 1
    finally:
        await _end(router)


def _end_at_signals() -> None:
    """The first one cancels the demo, whose end is then its own; more of them do not break that off."""
    loop, demo = asyncio.get_running_loop(), asyncio.current_task()
    assert demo is not None
    over = False

    def end() -> None:
        nonlocal over
        if not over:
            over = True
            demo.cancel()

    for number in ENDED_BY:
        loop.add_signal_handler(number, end)


def _free_port() -> int:
    try:
        with listen("127.0.0.1", DEFAULT_PORT):
            return DEFAULT_PORT
    except PortTaken:
        with listen("127.0.0.1", 0) as sock:
            port = int(sock.getsockname()[1])
        print(f"port {DEFAULT_PORT} is taken by {holder(DEFAULT_PORT)}; using {port}", file=sys.stderr)
        return port


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what the user has set for a router or a llama-server of their own."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(("LLAMA_", "ROUTER_")) and name not in _SETTING_VARIABLES
    }


def _configure(home: Path, weights: Path, port: int) -> dict[str, str]:
    """Write the configuration; the variables that lead a router to it, and all that it writes into this folder."""
    # llama.cpp's threads spin while they wait: two models that share the cores must not use them all each.
    threads = max(1, (os.cpu_count() or 2) // 2)
    shared = f"[*]\nctx-size = 4096\nparallel = 2\nthreads = {threads}\n"
    sections = [shared, *(f"[{name}]\nmodel = {weights}\n" for name in MODELS)]
    (home / "presets.ini").write_text("\n".join(sections))
    models = {name: {"gpus": gpus} for name, gpus in MODELS.items()}
    config = {"API-port": port, "LLM": models, "ROUTER": {"NUM_GPUS": 2, "QUEUE_HEAD_GRACE": 0}}
    (home / "config.json").write_text(json.dumps(config, indent=2))
    paths = {
        "CONFIG_PATH": home / "config.json",
        "PRESETS_PATH": home / "presets.ini",
        "STATE_DIR": home,
        "EVENT_LOG_DIR": home / "events",
        "HISTORY_DB_PATH": home / "history.duckdb",
        "RUN_DIR": home / "run",
    }
    return {f"{ENV_PREFIX}HOST": "127.0.0.1", **{f"{ENV_PREFIX}{name}": str(path) for name, path in paths.items()}}


async def _is_up(url: str, router: asyncio.subprocess.Process) -> bool:
    import httpx  # here and below, because every command passes through this module

    until = time.monotonic() + START_S
    async with httpx.AsyncClient() as client:
        while time.monotonic() < until and router.returncode is None:
            try:
                if (await client.get(f"{url}/health")).is_success:
                    return True
            except httpx.TransportError:
                await asyncio.sleep(0.05)
    return False


async def _burst(url: str, requests: int) -> int:
    """Send all at once, round robin over the models; how many were answered to the end."""
    import httpx

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        names = list(MODELS)
        answers = [_ask(client, names[n % len(names)], PROMPTS[n % len(PROMPTS)]) for n in range(requests)]
        answered = 0
        for over, answer in enumerate(asyncio.as_completed(answers), start=1):
            answered += await answer
            if sys.stderr.isatty():
                end = "\n" if over == requests else ""
                print(f"\r{over} of {requests} are over", end=end, file=sys.stderr, flush=True)
        return answered


async def _ask(client: "httpx.AsyncClient", model: str, prompt: str) -> bool:
    body = {
        "model": model,
        "stream": True,
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": prompt}],
    }
    import httpx

    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line.startswith("data:")]
            return answer.status_code == 200 and lines[-1:] == ["data: [DONE]"]
    except httpx.TransportError as error:
        print(f"a request for {model} broke off: {error}", file=sys.stderr)
        return False


@dataclass
class _Row:
    rid: int
    model: str
    arrived_us: int
    waited_us: int = -1
    loaded_us: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    outcome: str = "open"
    swap: int = field(default=0, repr=False)


async def _told(log_dir: Path) -> list[_Row]:
    """What the event log says of the burst, once it has its end: an answer is out a moment before its end is logged."""
    until = time.monotonic() + TOLD_S
    while True:
        rows = _rows(log_dir)
        if all(row.outcome != "open" for row in rows) or time.monotonic() > until:
            return rows
        await asyncio.sleep(0.05)


def _rows(log_dir: Path) -> list[_Row]:
    """By request, in the order of arrival."""
    rows: dict[int, _Row] = {}
    for event in read(log_dir):
        match event:
            case e.RequestArrived():
                rows[event.rid] = _Row(event.rid, event.model, event.arrived_us)
            case e.RequestDispatched():
                rows[event.rid].waited_us = event.waited_us
            case e.SwapBegun() if event.cause_rid in rows:
                rows[event.cause_rid].swap = event.swap
            case e.SwapFinished():
                for row in rows.values():
                    if row.swap == event.swap:
                        row.loaded_us = event.load_us
            case e.RequestFinished():
                row = rows[event.rid]
                row.outcome = str(event.status)
                row.tokens = max(event.completion_tokens, event.timing.predicted_n, 0)
                if event.timing.predicted_us > 0:
                    row.tokens_per_s = 1e6 * event.timing.predicted_n / event.timing.predicted_us
            case e.RequestFailed():
                rows[event.rid].outcome = f"{event.status} {event.code}"
            case e.RequestCancelled():
                rows[event.rid].outcome = "cancelled"
    return list(rows.values())


def _table(rows: list[_Row]) -> str:
    lines = [("request", "model", "waited", "loaded", "tokens", "tokens/s", "outcome")]
    lines += [
        (
            str(row.rid),
            row.model,
            f"{row.waited_us / 1e6:.2f} s",
            f"{row.loaded_us / 1e6:.2f} s" if row.loaded_us else "",
            str(row.tokens),
            f"{row.tokens_per_s:.1f}",
            row.outcome,
        )
        for row in rows
    ]
    swaps = sum(1 for row in rows if row.swap)
    return f"{aligned(lines)}\n{swaps} loads; `loaded` is the time of the load that the request caused"


def _example(url: str) -> str:
    body = json.dumps({"model": next(iter(MODELS)), "messages": [{"role": "user", "content": "Hello!"}]})
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"


def _export(url: str, ours: Mapping[str, str]) -> str:
    """What the other commands need to find this router and its log, to be pasted into a shell."""
    needed = [f"{ENV_PREFIX}{name}" for name in ("EVENT_LOG_DIR", "HISTORY_DB_PATH", "RUN_DIR")]
    values = {URL_VARIABLE: url, **{name: ours[name] for name in needed}}
    assigned = _path() + " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return f"for `llama-router status`, `load`, `log`, `sql` and the others, in another shell:\n  export {assigned}"


def _path() -> str:
    """So that a shell finds the command itself, which lies in an environment that may not be active there."""
    here = Path(sys.executable).parent
    is_found = shutil.which("llama-router") is not None or not (here / "llama-router").exists()
    return "" if is_found else f"PATH={shlex.quote(str(here))}:$PATH "


async def _end(router: asyncio.subprocess.Process) -> None:
    if router.returncode is None:
        router.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(router.wait(), STOP_S)
        except TimeoutError:
            router.kill()
            await router.wait()
