#!/usr/bin/env python3
"""Tokens per second of each model through the router: prompts read and answers made, alone and with every slot busy.

Standard library only: it runs on any machine that can reach the router. Each model is loaded by a first small request,
which does not count. Reading is measured with long prompts that no cache knows and answers of one token, writing with
short prompts and long answers; the rate is tokens over wall time, all requests of a level together.

    scripts/benchmark-throughput.py --host localhost:11434
    scripts/benchmark-throughput.py --model qwen3-8b --prompt-tokens 4000 --answer-tokens 256 --rounds 3

The table goes to stderr; one JSON object goes to stdout and to outputs/benchmark-throughput.json. Exit code 1 if a
request failed.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

OUTPUT = Path("outputs/benchmark-throughput.json")
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "larch")
WORDS += ("maple", "north", "ocean", "prism")


def main() -> int:
    args = _arguments()
    base = args.host if "://" in args.host else f"http://{args.host}"
    try:
        models = args.model or [model["id"] for model in _get(base, "/v1/models")["data"]]
        rows = [row for model in models for row in _measure(base, model, args)]
    except (OSError, ValueError, KeyError) as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        print(f"{base}: {type(error).__name__}: {error} {detail}", file=sys.stderr)
        return 1
    result = {
        "task": "throughput",
        "prompt_tokens": args.prompt_tokens,
        "answer_tokens": args.answer_tokens,
        "rounds": args.rounds,
        "models": rows,
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="localhost:11434", help="the router (default localhost:11434)")
    parser.add_argument("--model", action="append", help="only this model; may be repeated (default: every listed one)")
    parser.add_argument("--prompt-tokens", type=int, default=1000, help="length of the prompts that are read (1,000)")
    parser.add_argument("--answer-tokens", type=int, default=128, help="length of the answers that are made (128)")
    parser.add_argument("--rounds", type=int, default=2, help="requests per slot and level; the best round counts (2)")
    return parser.parse_args()


def _measure(base: str, model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row with one request at a time, and one with as many as the model has slots."""
    _complete(base, model, "warm up", 1)
    slots = int(_get(base, f"/props?model={urllib.parse.quote(model, safe='')}")["total_slots"])
    rows = []
    for concurrency in sorted({1, slots}):
        reading = max(_rate(base, model, concurrency, args, nth, reading=True) for nth in range(args.rounds))
        writing = max(_rate(base, model, concurrency, args, nth, reading=False) for nth in range(args.rounds))
        row = {
            "model": model,
            "slots": slots,
            "concurrency": concurrency,
            "prompt_tokens_per_s": round(reading, 1),
            "answer_tokens_per_s": round(writing, 1),
        }
        print(
            f"{model:32} concurrency {concurrency:3}  reads {reading:10,.1f}  writes {writing:8,.1f} tokens/s",
            file=sys.stderr,
        )
        rows.append(row)
    return rows


def _rate(base: str, model: str, concurrency: int, args: argparse.Namespace, nth: int, *, reading: bool) -> float:
    """Tokens per second of so many requests begun together."""

    def ask(slot: int) -> int:
        seed = _seed(nth, slot, concurrency, reading)
        if reading:
            return int(_complete(base, model, _prompt(seed, args.prompt_tokens), 1)["prompt_n"])
        return int(_complete(base, model, _prompt(seed, 16), args.answer_tokens)["predicted_n"])

    with ThreadPoolExecutor(concurrency) as pool:
        began = time.monotonic()
        tokens = sum(pool.map(ask, range(concurrency)))
        return tokens / (time.monotonic() - began)


def _seed(nth: int, slot: int, concurrency: int, reading: bool) -> int:
    """A number that is another for each request of this run, and another in the next run: no cache knows its prompt."""
    return ((os.getpid() * 64 + nth) * 64 + slot) * 128 + concurrency * 2 + reading


def _prompt(seed: int, tokens: int) -> str:
    """About so many tokens, different from the first word on."""
    words = [f"{seed}:"]
    while len(words) < tokens * 3 // 4:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        words.append(WORDS[seed >> 60])
    return " ".join(words)


def _complete(base: str, model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """llama-server's own timings of one completion, which makes all of its tokens."""
    body = {"model": model, "prompt": prompt, "n_predict": tokens, "ignore_eos": True, "cache_prompt": False}
    request = urllib.request.Request(
        f"{base}/completion", json.dumps(body).encode(), {"Content-Type": "application/json", **_key()}
    )
    with urllib.request.urlopen(request) as answer:
        timings: dict[str, Any] = json.load(answer)["timings"]
        return timings


def _get(base: str, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(base + path, headers=_key()), timeout=600) as answer:
        loaded: dict[str, Any] = json.load(answer)
        return loaded


def _key() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


if __name__ == "__main__":
    sys.exit(main())
