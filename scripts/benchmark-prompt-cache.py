#!/usr/bin/env python3
"""What llama.cpp's prompt cache saves: a prompt asked cold, again, with a next turn, after others, and without cache.

Standard library only. Then the capacity pass: N conversations in turn, twice; how many of the second round found their
prompt says how many the caches hold. With fewer places than conversations a round robin finds none: the one that is
needed next is always the one that was dropped.

    scripts/benchmark-prompt-cache.py --model qwen3-8b                              through the router
    scripts/benchmark-prompt-cache.py --instance-url http://localhost:11434/instance/qwen3-8b%230.1 --model qwen3-8b

The table goes to stderr; one JSON object goes to stdout and to outputs/benchmark-prompt-cache.json. Exit code 1 if a
request failed.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

OUTPUT = Path("outputs/benchmark-prompt-cache.json")
SENTENCE = "The harbour master of {place} wrote down every ship, its cargo, its flag and the hour of the tide. "


def main() -> int:
    args = _arguments()
    try:
        first = _first_pass(args)
        capacity = _capacity_pass(args)
    except (OSError, ValueError, KeyError) as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        print(f"{args.instance_url}: {type(error).__name__}: {error} {detail}", file=sys.stderr)
        return 1
    result = {"task": "prompt-cache", "model": args.model, "steps": first, "capacity": capacity}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instance-url", default="http://localhost:11434", help="the router, or one of its instances")
    parser.add_argument("--model", required=True, help="the model")
    parser.add_argument("--sentences", type=int, default=40, help="length of a conversation, about 20 tokens each (40)")
    parser.add_argument("--conversations", type=int, default=4, help="conversations of the capacity pass (4)")
    return parser.parse_args()


def _first_pass(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The same conversation, again and again; `evicted` comes after as many others as the capacity pass has."""
    ours = _conversation("the first port", args)
    steps = [("cold", ours, True), ("repeat", ours, True)]
    answered = [*ours, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And the next day?"}]
    steps.append(("next turn", answered, True))
    rows = [_step(name, messages, cached, args) for name, messages, cached in steps]
    for number in range(args.conversations):
        _ask(_conversation(f"another port, number {number}", args), True, args)
    rows.append(_step("after others", answered, True, args))
    rows.append(_step("cache_prompt=false", answered, False, args))
    return rows


def _step(name: str, messages: list[dict[str, str]], cached: bool, args: argparse.Namespace) -> dict[str, Any]:
    timings = _ask(messages, cached, args)
    row = {
        "step": name,
        "cached_tokens": timings.get("cache_n", 0),
        "read_tokens": timings["prompt_n"],
        "prefill_ms": round(timings["prompt_ms"], 1),
    }
    print(
        f"{name:20} {row['cached_tokens']:7} cached {row['read_tokens']:7} read {row['prefill_ms']:10,.1f} ms",
        file=sys.stderr,
    )
    return row


def _capacity_pass(args: argparse.Namespace) -> dict[str, Any]:
    conversations = [_conversation(f"port {number}", args) for number in range(args.conversations)]
    cold = [_ask(messages, True, args) for messages in conversations]
    warm = [_ask(messages, True, args) for messages in conversations]
    found = [timings.get("cache_n", 0) > timings["prompt_n"] for timings in warm]
    print(f"of {len(found)} conversations in turn, {sum(found)} were found again", file=sys.stderr)
    return {
        "conversations": args.conversations,
        "found": sum(found),
        "cold_ms": round(sum(timings["prompt_ms"] for timings in cold), 1),
        "warm_ms": round(sum(timings["prompt_ms"] for timings in warm), 1),
    }


def _conversation(place: str, args: argparse.Namespace) -> list[dict[str, str]]:
    """Another from its first words on, and another in each run."""
    text = SENTENCE.format(place=f"{place} of {os.getpid()}") * args.sentences
    return [{"role": "user", "content": text + "What was the cargo?"}]


def _ask(messages: list[dict[str, str]], cached: bool, args: argparse.Namespace) -> dict[str, Any]:
    """llama-server's timings; one token is made."""
    body = {"model": args.model, "messages": messages, "max_tokens": 1, "temperature": 0, "cache_prompt": cached}
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    url = f"{args.instance_url.rstrip('/')}/v1/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        timings: dict[str, Any] = json.load(answer)["timings"]
        return timings


if __name__ == "__main__":
    sys.exit(main())
