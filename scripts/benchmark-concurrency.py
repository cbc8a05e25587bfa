#!/usr/bin/env python3
"""Hammer a router with N short requests over its models, and report how many succeeded and how long they took.

Standard library only: it runs on any machine that can reach the router. The requests go round robin over the models,
through a pool of at most `--workers` connections.

    scripts/benchmark-concurrency.py --host localhost:11434 -n 100
    scripts/benchmark-concurrency.py --host localhost:11434 -n 1000 --model qwen3-8b --model gemma-12b

The table goes to stderr; one JSON object goes to stdout and to outputs/benchmark-concurrency.json.
With --check: exit 1 unless every request succeeded (and --loads-max holds, if given).
"""

import argparse
import json
import math
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OUTPUT = Path("outputs/benchmark-concurrency.json")
LOADS_METRIC = "llama_router_loads_total"


def main() -> int:
    args = _arguments()
    base = args.host if "://" in args.host else f"http://{args.host}"
    models = args.model or _models(base)
    if not models:
        print(f"{base} lists no model", file=sys.stderr)
        return 1
    loads_before = _loads(base)
    started = time.monotonic()
    outcomes = _burst(base, models, args)
    wall_s = time.monotonic() - started
    result = _summary(outcomes, models, args, wall_s)
    result["loads"] = None if loads_before is None else _loads(base) - loads_before
    _show(result)
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return _verdict(result, args) if args.check else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="localhost:11434", help="the router (default localhost:11434)")
    parser.add_argument("-n", type=int, default=100, help="requests (default 100)")
    parser.add_argument("--workers", type=int, default=0, help="connections at once (default: all requests at once)")
    parser.add_argument("--model", action="append", help="use this model; may be repeated (default: every listed one)")
    parser.add_argument("--tokens", type=int, default=16, help="max_tokens of each (default 16)")
    parser.add_argument("--check", action="store_true", help="exit 1 unless every request succeeded")
    parser.add_argument("--loads-max", type=int, help="with --check: and at most so many models were loaded for it")
    return parser.parse_args()


def _models(base: str) -> list[str]:
    with urllib.request.urlopen(f"{base}/v1/models", timeout=30) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def _loads(base: str) -> int | None:
    """Models that the router has loaded so far, from its metrics; None when it has none."""
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return None
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith((LOADS_METRIC + "{", LOADS_METRIC + " "))]
    return round(sum(float(value) for value in values))


def _burst(base: str, models: list[str], args: argparse.Namespace) -> list[tuple[str, str, float]]:
    """(model, outcome, seconds) of each request; outcome is `200`, another status, or the name of what went wrong."""
    done = 0
    lock = threading.Lock()
    threading.stack_size(256 * 1024)

    def ask(number: int) -> tuple[str, str, float]:
        nonlocal done
        model = models[number % len(models)]
        started = time.monotonic()
        outcome = _ask(base, model, number, args.tokens)
        with lock:
            done += 1
            if sys.stderr.isatty():
                print(f"\r{done}/{args.n}", end="", file=sys.stderr)
        return model, outcome, time.monotonic() - started

    with ThreadPoolExecutor(args.workers or args.n) as pool:
        return list(pool.map(ask, range(args.n)))


def _ask(base: str, model: str, number: int, tokens: int) -> str:
    body = {
        "model": model,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": f"Request {number}: say something short."}],
    }
    request = urllib.request.Request(
        f"{base}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request) as answer:
            content = json.load(answer)
            return str(answer.status) if content["choices"] else "no choices"
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (OSError, ValueError, KeyError) as error:
        return type(error).__name__


def _summary(
    outcomes: list[tuple[str, str, float]], models: list[str], args: argparse.Namespace, wall_s: float
) -> dict[str, object]:
    good = sorted(seconds for _, outcome, seconds in outcomes if outcome == "200")
    return {
        "task": "concurrency",
        "requests": args.n,
        "models": models,
        "workers": args.workers or args.n,
        "success_rate": len(good) / len(outcomes),
        "outcomes": dict(Counter(outcome for _, outcome, _ in outcomes)),
        "wall_s": round(wall_s, 3),
        "requests_per_s": round(len(good) / wall_s, 2),
        "latency_s": {
            "mean": round(sum(good) / len(good), 3) if good else None,
            "p50": _percentile(good, 50),
            "p95": _percentile(good, 95),
            "p99": _percentile(good, 99),
            "max": _percentile(good, 100),
        },
    }


def _percentile(ordered: list[float], percent: int) -> float | None:
    """The smallest value that at least so many percent do not exceed."""
    return round(ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)], 3) if ordered else None


def _show(result: dict[str, object]) -> None:
    print(file=sys.stderr)
    for name, value in result.items():
        print(f"{name:16} {value}", file=sys.stderr)


def _verdict(result: dict[str, object], args: argparse.Namespace) -> int:
    if result["success_rate"] != 1.0:
        print("missed: not every request succeeded", file=sys.stderr)
        return 1
    if args.loads_max is not None and (result["loads"] is None or result["loads"] > args.loads_max):
        print(f"missed: {result['loads']} loads, at most {args.loads_max} were allowed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
