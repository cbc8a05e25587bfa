"""The scan of the queue once more: naive, request by request, from the description and not from the code.

Slow on purpose: no lanes, no indexes, everything counted anew. `actions` says what the queue's next move must be;
`must_leave` says what stands in a request's way whatever is chosen. Both read plain values of the state and nothing of
the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.scheduler.state import Model, Replica, Request, State
from tests.scheduler import reference_engines as engines


@dataclass
class Move:
    """What the queue's first request that can do something does: `wish`, `dispatch`, `swap` or `refuse`."""

    what: str
    rid: int
    replica: str = ""
    victims: list[str] = field(default_factory=list)


def next_move(state: State) -> Move | None:
    """Scan the queue in its order; earlier requests claim GPUs and protect models against later ones."""
    now, grace = state.now_us, state.settings.head_grace_us
    busy: set[object] = {gpu for swap in state.swaps.values() for gpu in _gpus(swap.mask)}
    busy = busy.union(*(engines.resources(state, swap.target) for swap in state.swaps.values() if swap.target))
    claimed: set[object] = set()
    blocked: set[str] = set()
    earlier: set[str] = set()
    seen: set[str] = set()
    for request in queue(state):
        if _key_is_held(state, request) or request.model in seen:
            continue
        seen.add(request.model)
        model = state.models[request.model]
        up = [state.replicas[name] for name in model.replicas if state.replicas[name].phase == "ready"]
        if not model.victim_of and up:
            if model.name not in blocked:
                if request.op:
                    return Move("wish", request.rid)
                replica = _place(state, model, up, request)
                if replica:
                    return Move("dispatch", request.rid, replica=replica)
            earlier.add(model.name)
            continue
        if not model.victim_of and model.target_of:
            earlier.add(model.name)
            continue
        if any(state.gpus_out >> gpu & 1 for gpu in model.gpus):
            continue
        outcome, victims, stuck = plan(state, model, request)
        if outcome == "never":
            return Move("refuse", request.rid)
        foot = engines.resources(state, model.name).union(
            model.gpus, *(state.models[victim].gpus for victim in victims)
        )
        since = request.head_since_us
        if since < 0:
            since = now
        if state.settings.head_grace_from == "arrival":
            since = request.arrived_us
        hard = request.forced or request.op > 0 or now - since >= grace
        wanted = any(_in_flight(state, victim) or _wanted(state, victim) for victim in victims)
        possible = (
            outcome == "now" and not model.replicas and not foot & (busy | claimed) and not earlier & set(victims)
        )
        if possible and (hard or not wanted):
            return Move("swap", request.rid, victims=victims)
        claimed |= foot
        if hard:
            blocked |= {*victims, *stuck}
    return None


def queue(state: State) -> list[Request]:
    """All that wait, forced ones first, then by priority, then by arrival."""
    waiting = [request for request in state.requests.values() if not request.replica and request.rid not in state.lost]
    return sorted(waiting, key=lambda request: (not request.forced, -request.priority, request.rid))


def plan(state: State, target: Model, request: Request) -> tuple[str, list[str], list[str]]:
    """("now" | "later" | "never", victims, models in the way that cannot be asked to leave now)."""
    if any(gpu >= state.settings.gpus for gpu in target.gpus):
        return "never", [], []
    cap = state.settings.max_models_per_gpu
    outcome, victims, stuck = "now", list[str](), list[str]()
    engine = state.settings.engine != "residency"

    def order(name: str) -> tuple[bool, bool, int, str]:
        model = state.models[name]
        age = model.used_us if state.settings.eviction == "lru" else model.loaded_us
        wanted = not request.forced and _wanted(state, name) > 0
        return wanted, state.settings.prefer_idle and _in_flight(state, name) > 0, age, name

    if engine:
        outcome, victims, stuck = engines.plan(state, target)
        if state.settings.engine != "capacity":
            victims.sort(key=order)
    for gpu in sorted(target.gpus) if cap else ():
        staying = [name for name in _residents(state, gpu) if name != target.name and name not in victims]
        excess = len(staying) - (cap - 1)
        if excess <= 0:
            continue
        can_go = sorted([name for name in staying if _can_be_asked(state, name)], key=order)
        if len(can_go) < excess:
            cannot = [name for name in staying if name not in can_go]
            stuck += [name for name in cannot if name not in stuck]
            pinned = [name for name in cannot if _persistent(state, name)]
            if outcome == "never" or len(staying) - len(pinned) < excess:
                outcome = "never"
            else:
                outcome = "later"
        victims += can_go[:excess]
    for name in list(victims) if cap else ():
        others = [victim for victim in victims if victim != name]
        gone = [*others, *stuck] if engine else others
        staying_then = {one for one in engines.present(state) if one not in (target.name, *gone)}
        if engine and engines.legal_with(state, target, staying_then) is False:
            continue
        if all(
            len([one for one in _residents(state, gpu) if one != target.name and one not in gone]) <= cap - 1
            for gpu in state.models[name].gpus
            if gpu in target.gpus
        ):
            victims = others
    return outcome, victims, stuck


def must_leave(state: State, request: Request) -> set[str]:
    """Models that any swap for this request has to evict, whatever else it chooses."""
    target = state.models[request.model]
    cap = state.settings.max_models_per_gpu
    result: set[str] = set()
    if state.settings.engine != "residency":
        result = engines.must_leave(state, target)
    for gpu in target.gpus if cap else ():
        there = [name for name in _residents(state, gpu) if name != target.name]
        if len(there) - (cap - 1) >= len([name for name in there if not _persistent(state, name)]):
            result |= {name for name in there if not _persistent(state, name)}
    return result


def _place(state: State, model: Model, up: list[Replica], request: Request) -> str:
    """The least busy replica with room; ties to the conversation's last one, then to the lowest index."""
    best: tuple[int, bool, int] | None = None
    chosen = ""
    for replica in up:
        load = sum(replica.in_flight.values()) + sum(replica.releasing.values())
        weight = 0 if request.work == "metadata" else max(1, min(request.slots_wanted, replica.slots))
        free = state.settings.overcommit
        if replica.suspect or replica.alone or _restores(state, replica):
            continue
        if request.attempt > 1:
            if replica.in_flight or replica.releasing:
                continue
        elif weight and free >= 0 and load + weight > replica.slots + free:
            continue
        last = state.settings.affinity and model.conversations.get(request.conversation, "") == replica.id
        if best is None or (load, not last, replica.index) < best:
            best, chosen = (load, not last, replica.index), replica.id
    return chosen


def _restores(state: State, replica: Replica) -> bool:
    caches = state.caches.replicas.get(replica.id)
    return caches is not None and bool(caches.restoring) and state.now_us < caches.restore_until_us


def _gpus(mask: int) -> list[int]:
    return [gpu for gpu in range(64) if mask >> gpu & 1]


def _residents(state: State, gpu: int) -> list[str]:
    return [model.name for model in state.models.values() if gpu in model.gpus and (model.replicas or model.target_of)]


def _can_be_asked(state: State, name: str) -> bool:
    model = state.models[name]
    up = any(state.replicas[replica].phase == "ready" for replica in model.replicas)
    return up and not model.target_of and not model.victim_of and not _persistent(state, name)


def _persistent(state: State, name: str) -> bool:
    return name in state.settings.models and state.settings.models[name].persistent


def _in_flight(state: State, name: str) -> int:
    return sum(
        1
        for request in state.requests.values()
        if request.model == name and request.replica and request.work == "generation"
    )


def _wanted(state: State, name: str) -> int:
    return sum(1 for request in queue(state) if request.model == name and not _key_is_held(state, request))


def _key_is_held(state: State, request: Request) -> bool:
    limits = state.settings.keys.get(request.key)
    if limits is None or not limits.max_parallel:
        return False
    running = sum(1 for other in state.requests.values() if other.replica and other.key == request.key)
    return running >= limits.max_parallel
