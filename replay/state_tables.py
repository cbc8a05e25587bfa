"""A state of the scheduler as tables, for people and as plain values. Pure."""

from typing import Any

from replay.text import Table, aligned, clock, count, duration, listed
from router.scheduler import State
from router.scheduler.state import Model, Request, gpus_of, is_cooling

SHOWN = 12
"""Rows of the queue and of what is in flight; the rest is counted."""


def render_state(state: State, shown: int = SHOWN) -> str:
    """What waits, what runs, who is where, what is on its way."""
    parts = [f"run {state.run} at {clock(state.now_us)}, {_condition(state)}"]
    for title, (head, rows) in tables(state, shown):
        parts.append(f"{title}\n{aligned(head, rows, indent='  ')}" if rows else title)
    return "\n".join(parts)


def tables(state: State, shown: int = SHOWN) -> list[tuple[str, Table]]:
    """Title and table of each part; only parts that have something in them, and the GPUs and the queue always."""
    waiting = in_order(state)
    running = sorted((request for request in state.requests.values() if request.replica), key=lambda each: each.rid)
    parts = [
        ("GPUs", _gpus(state)),
        ("models that are loaded or wanted", _models(state)),
        ("replicas", _replicas(state)),
        (_title("queue", waiting, shown), _queue(state, waiting[:shown])),
        (_title("in flight", running, shown), _running(state, running[:shown])),
        ("swaps", _swaps(state)),
        ("timers", _timers(state)),
    ]
    return [(title, table) for title, table in parts if table[1] or title.startswith(("GPUs", "queue"))]


def in_order(state: State) -> list[Request]:
    """Who waits, first come first; promoted and preferred ones before."""
    return sorted((request for request in state.requests.values() if not request.replica), key=lambda each: each.rank)


def summary(state: State) -> dict[str, Any]:
    """The same as plain values, with every request."""
    return {
        "run": state.run,
        "at_us": state.now_us,
        "gpus": [{"gpu": gpu, "residents": list(names)} for gpu, names in enumerate(state.residents)],
        "models": [
            {
                "model": model.name,
                "phase": model.phase,
                "gpus": list(model.gpus),
                "replicas": list(model.replicas),
                "in_flight": model.in_flight,
                "queued": _queued(state, model),
                "cooling_down": is_cooling(state, model),
            }
            for model in state.models.values()
        ],
        "queue": [
            {
                "rid": request.rid,
                "model": request.model,
                "waited_us": max(0, state.now_us - request.arrived_us),
                "priority": request.priority,
                "forced": request.forced,
                "wish": bool(request.op),
                "held": None if request.held is None else request.held[0],
                "blocked_by": [] if request.held is None else list(request.held[3]),
            }
            for request in in_order(state)
        ],
        "in_flight": [
            {"rid": request.rid, "model": request.model, "replica": request.replica, "weight": request.weight}
            for request in state.requests.values()
            if request.replica
        ],
        "swaps": [
            {"swap": swap.id, "target": swap.target, "why": swap.why, "phase": swap.phase, "victims": swap.victims}
            for swap in state.swaps.values()
        ],
        "timers": dict(state.timers),
    }


def _condition(state: State) -> str:
    if state.stopped:
        return "stopped"
    if state.stopping_at_us:
        return f"stopping until {clock(state.stopping_at_us)}"
    return "serving"


def _title(name: str, requests: list[Request], shown: int) -> str:
    more = f", the first {shown}" if len(requests) > shown else ""
    return f"{name}: {count(len(requests), 'request')}{more}" if requests else f"{name}: empty"


def _gpus(state: State) -> Table:
    rows = []
    for gpu, names in enumerate(state.residents):
        residents = [f"{name} ({state.models[name].phase})" for name in names]
        out = "out of service" if state.gpus_out >> gpu & 1 else ""
        rows.append((str(gpu), listed(residents) if residents else "-", out))
    return ("GPU", "models", ""), rows


def _models(state: State) -> Table:
    rows = []
    for model in state.models.values():
        queued = _queued(state, model)
        cooling = is_cooling(state, model)
        if model.phase == "absent" and not queued and not cooling:
            continue
        until = "until a reload" if model.cooldown_until_us < 0 else ""
        if cooling and not until:
            until = f"for {duration(model.cooldown_until_us - state.now_us)}"
        used = duration(state.now_us - model.used_us) if model.used_us else ""
        rows.append(
            (
                model.name,
                model.phase,
                ",".join(map(str, model.gpus)) or "cpu",
                str(model.in_flight),
                str(queued),
                used,
                f"cools down {until}" if cooling else "",
            )
        )
    return ("model", "phase", "gpus", "in flight", "queued", "unused for", ""), rows


def _queued(state: State, model: Model) -> int:
    lane = state.lanes.get(model.name)
    return 0 if lane is None else lane.length


def _replicas(state: State) -> Table:
    rows = []
    for replica in state.replicas.values():
        notes = [word for word, given in (("suspect", replica.suspect), ("stalled", replica.stalled)) if given]
        if replica.releasing:
            notes.append(f"still lets go of {listed(list(replica.releasing))}")
        gpus = ",".join(map(str, gpus_of(replica.mask))) or "cpu"
        rows.append((replica.id, replica.phase, gpus, f"{replica.load}/{replica.slots or '?'}", ", ".join(notes)))
    return ("replica", "phase", "gpus", "slots", ""), rows


def _queue(state: State, waiting: list[Request]) -> Table:
    rows = []
    for request in waiting:
        why = ""
        if request.held is not None:
            why = request.held[0] + (f": {listed(request.held[3], 4)}" if request.held[3] else "")
        rows.append(
            (
                f"{request.rid}",
                request.model + (" (wish)" if request.op else ""),
                duration(max(0, state.now_us - request.arrived_us)),
                "forced" if request.forced else str(request.priority),
                why,
            )
        )
    return ("request", "model", "waited", "priority", "held"), rows


def _running(state: State, running: list[Request]) -> Table:
    rows = [(str(request.rid), request.replica, str(request.attempt), str(request.weight)) for request in running]
    return ("request", "replica", "attempt", "slots"), rows


def _swaps(state: State) -> Table:
    rows = [
        (
            str(swap.id),
            swap.target or "(unload)",
            swap.why,
            swap.phase,
            listed(swap.victims) if swap.victims else "",
            ",".join(map(str, gpus_of(swap.mask))),
            duration(state.now_us - swap.begun_us),
        )
        for swap in state.swaps.values()
    ]
    return ("swap", "target", "why", "phase", "still to leave", "gpus", "for"), rows


def _timers(state: State) -> Table:
    due = sorted(state.timers.items(), key=lambda timer: (timer[1], timer[0]))
    return ("timer", "due in"), [(name, duration(due_us - state.now_us)) for name, due_us in due[:SHOWN]]
