"""Questions to a llama-server: is it ours, is it ready, what does it have, does it move?

None of them needs the scheduler or changes anything in the child. `/health` says no more than that the HTTP threads
live; `/slots` is answered by the thread that generates.
"""

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from router import proc
from router.spawn import MARKER
from router.upstream import Endpoint, UpstreamError, fetch

COUNT_MAX = 10**12
"""A child counts no further."""

Health = Literal["absent", "loading", "ready"]


class Imposter(Exception):
    """Whoever answers is not the child that was started; the text says how that is known."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What a llama-server has; `slot_ctx` in tokens, 0 when it did not say."""

    slots: int = 1
    slot_ctx: int = 0
    build: str = ""
    model_path: str = ""


async def health(endpoint: Endpoint, timeout_s: float) -> Health:
    """`absent`: nobody answers, or not in time."""
    try:
        answer = await fetch(endpoint, "GET", "/health", timeout_s=timeout_s)
    except (UpstreamError, TimeoutError):
        return "absent"
    return "ready" if answer.status == 200 else "loading"


async def prove(endpoint: Endpoint, pid: int, marker: str) -> None:
    """Raises Imposter unless the listener at `endpoint` belongs to the session of `pid` or bears the marker.

    A UNIX socket tells the pid of its listener. A TCP port is looked up in the system's table of sockets; where that
    cannot be read, the key decides: it is taken, and another one is refused.
    """
    if endpoint.path is not None:
        peer = _peer_pid(endpoint.path)
        found = proc.stat(peer)
        if found is None or (found.session != pid and proc.environment(peer).get(MARKER) != marker):
            raise Imposter(f"process {peer} listens on {endpoint}, and not the child {pid}")
        return
    inodes = proc.listener_inodes(endpoint.port)
    if inodes:
        ours = await asyncio.to_thread(proc.members, pid, MARKER, marker)
        if not await asyncio.to_thread(proc.holds_socket, [one.pid for one in ours], inodes):
            raise Imposter(f"another process than the child {pid} listens on {endpoint}")
        return
    wrong = Endpoint(host=endpoint.host, port=endpoint.port, key=endpoint.key[::-1])
    refused = await fetch(wrong, "GET", "/props", timeout_s=5)
    if refused.status not in (401, 403):
        raise Imposter(f"whoever listens on {endpoint} takes any key")


def _peer_pid(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


async def properties(endpoint: Endpoint, timeout_s: float) -> Properties:
    """Read /props and /slots. Raises Imposter when our key is refused, UpstreamError or TimeoutError without answer."""
    props = await _json(endpoint, "/props", timeout_s)
    slots = await _json(endpoint, "/slots", timeout_s)
    listed = [slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
    if not isinstance(props, dict):
        props = {}
    contexts = [_int(slot.get("n_ctx")) for slot in listed]
    defaults = props.get("default_generation_settings")
    return Properties(
        slots=len(listed) or _int(props.get("total_slots")) or 1,
        slot_ctx=min(contexts, default=0) or _int(defaults.get("n_ctx") if isinstance(defaults, dict) else 0),
        build=str(props.get("build_info", "")),
        model_path=str(props.get("model_path", "")),
    )


@dataclass(frozen=True, slots=True)
class Work:
    """How far one slot is. `task` numbers what it does; the counts are 0 where the server does not tell."""

    task: int
    busy: bool
    prompt_tokens: int
    tokens: int
    held: int = 0
    """Tokens of its whole prompt, and those that it has made."""


async def work(endpoint: Endpoint, timeout_s: float) -> tuple[Work, ...] | None:
    """How far each slot is. None when nobody answers in time."""
    try:
        slots = await _json(endpoint, "/slots", timeout_s)
    except (UpstreamError, TimeoutError, Imposter):
        return None
    return tuple(
        Work(
            task=_int(slot.get("id_task")),
            busy=bool(slot.get("is_processing")),
            prompt_tokens=_int(slot.get("n_prompt_tokens_processed")),
            tokens=_decoded(slot.get("next_token")),
            held=_int(slot.get("n_prompt_tokens")),
        )
        for slot in (slots if isinstance(slots, list) else [])
        if isinstance(slot, dict)
    )


def has_moved(before: tuple[Work, ...] | None, after: tuple[Work, ...] | None) -> bool:
    """Whether a slot that was at work has got on, or the server answers again. Work taken since is no sign of life."""
    if before is None or after is None:
        return after is not None
    return any(then.busy and then != now for then, now in zip(before, after, strict=False))


def _decoded(next_token: object) -> int:
    """A list of one today, the thing itself in earlier builds."""
    parts = next_token if isinstance(next_token, list) else [next_token]
    return sum(_int(part.get("n_decoded")) for part in parts if isinstance(part, dict))


async def _json(endpoint: Endpoint, path: str, timeout_s: float) -> Any:
    """The decoded answer; None when the server does not have this route."""
    answer = await fetch(endpoint, "GET", path, timeout_s=timeout_s)
    if answer.status in (401, 403):
        raise Imposter(f"whoever listens on {endpoint} refuses the key that its child was given")
    if answer.status != 200:
        return None
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _int(value: object) -> int:
    """0 for what is no number, or nonsense."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= COUNT_MAX else 0


def socket_exists(endpoint: Endpoint) -> bool:
    """Whether asking can have an answer at all; a file that is not there yet is the usual case while loading."""
    return endpoint.path is None or os.path.exists(endpoint.path)
