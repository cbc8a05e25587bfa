"""Which prompt caches are saved before a process stops, and restored once the next one is ready.

A slot is worth a file if the prefill that it is expected to save is longer than saving and restoring it take: tokens x
time per token x chance of return > save + restore. All of it is measured: times in earlier requests, saves and
restores, the chance in how often conversations went on so far, and this one. Neither may hold up a swap for longer than
`keep_hold_us` together; whatever is not done by then costs the cache and nothing else.

Called by `swaps.py` at its two places in the life of a swap, and by the end of the router. Integers only.
"""

from collections.abc import Iterable, Iterator, Sequence

from eventlog import events as e
from router.scheduler.cache_state import File, Holding, ModelCaches, ReplicaCaches
from router.scheduler.state import Model, Replica, State, Swap

PREFILL_NS = 300_000
"""Per token, before it was measured."""
MOVE_NS = 20_000
"""To save or restore a token, before it was measured."""
TOKEN_BYTES = 65_536
"""Size of a token, before it was measured."""
PRIOR_TURNS = 2
"""What is known of all conversations counts as much as so many turns of this one."""
GAP_US = 600_000_000
"""A conversation that was quiet for no longer than this, or its longest gap, is as likely to go on as ever."""
EARLY_SAVE_US = 200_000
"""While others still generate, nothing is saved that would hold up their tokens for longer."""
USELESS_MAX = 2
"""Restores in a row that bring nothing before a model's caches are given up."""


class Wanted:
    """A save that is worth its time."""

    __slots__ = ("bytes", "chance", "cost_us", "holding", "replica", "save_us", "slot", "worth_us")

    def __init__(self, state: State, replica: str, slot: int, holding: Holding, of_model: ModelCaches) -> None:
        self.replica = replica
        self.slot = slot
        self.holding = holding
        self.chance = chance_permille(state, of_model, holding.conversation)
        self.save_us = holding.tokens * (of_model.save_ns or MOVE_NS) // 1000
        self.cost_us = self.save_us + restore_us(of_model, holding.tokens)
        self.worth_us = worth_us(of_model, holding.tokens) * self.chance // 1000
        self.bytes = holding.tokens * of_model.token_bytes

    @property
    def rank(self) -> tuple[int, str, int]:
        return (self.cost_us - self.worth_us, self.replica, self.slot)


def worth_us(of_model: ModelCaches, tokens: int) -> int:
    """Time to read so many tokens of a prompt."""
    return tokens * (of_model.prefill_ns or PREFILL_NS) // 1000


def restore_us(of_model: ModelCaches, tokens: int) -> int:
    return tokens * (of_model.restore_ns or MOVE_NS) // 1000


def chance_permille(state: State, of_model: ModelCaches, conversation: str) -> int:
    """That a conversation goes on: how often it did, and how often all did; halved as its silence doubles."""
    prior = 1000 * (of_model.followed + 1) // (of_model.arrived + 2)
    turns = of_model.turns.get(conversation)
    if turns is None:
        return prior
    chance = (1000 * (turns.count - 1) + PRIOR_TURNS * prior) // (turns.count - 1 + PRIOR_TURNS)
    silent = (state.now_us - turns.last_us) // max(turns.gap_us, GAP_US)
    return chance >> silent.bit_length()


# --- saving ---------------------------------------------------------------------------------------------------------


def save(state: State, swap: Swap) -> tuple[bool, e.Decision | None]:
    """The victims are idle. Whether their stop has to wait, and what is to be done meanwhile."""
    if not state.settings.keep_caches:
        return False, None
    from_us = swap.save_from_us
    due_us = (from_us or state.now_us) + state.settings.keep_hold_us
    replicas = [replica for name in swap.victims for replica in state.models[name].replicas]
    return _save_all(state, replicas, swap.id, str(swap.id), from_us, due_us)


def save_at_end(state: State) -> tuple[bool, e.Decision | None]:
    """The router is about to end, and its caches outlive it."""
    if not state.settings.keep_caches or not state.settings.keep_persist:
        return False, None
    from_us = state.caches.end_from_us
    due_us = min((from_us or state.now_us) + state.settings.keep_hold_us, state.stopping_at_us)
    replicas = [replica.id for replica in state.replicas.values() if replica.phase == "ready"]
    return _save_all(state, replicas, 0, "router", from_us, due_us)


def _save_all(
    state: State, replicas: Sequence[str], swap: int, timer: str, from_us: int, due_us: int
) -> tuple[bool, e.Decision | None]:
    if state.now_us >= due_us:
        return False, None
    pending = any(caches.saving for _, caches in _of_replicas(state, replicas))
    wanted = _first(state, replicas, swap, due_us - state.now_us)
    if wanted is None and not pending:
        return False, None
    if not from_us:
        return True, e.TimerSet(kind="cache", key=timer, due_us=due_us)
    return True, None if wanted is None else _save(wanted, swap, due_us - state.now_us)


def save_early(state: State, swap: Swap) -> e.Decision | None:
    """Slots that are idle while others of their replica still generate, as long as that is hardly felt."""
    if not state.settings.keep_caches:
        return None
    replicas = [replica for name in swap.victims for replica in state.models[name].replicas]
    wanted = _first(state, replicas, swap.id, min(EARLY_SAVE_US, state.settings.keep_hold_us))
    return None if wanted is None else _save(wanted, swap.id, state.settings.keep_hold_us)


def _save(wanted: Wanted, swap: int, limit_us: int) -> e.CacheSaveOrdered:
    return e.CacheSaveOrdered(
        replica=wanted.replica,
        slot=wanted.slot,
        conversation=wanted.holding.conversation,
        tokens=wanted.holding.tokens,
        swap=swap,
        bytes=wanted.bytes,
        worth_us=wanted.worth_us,
        cost_us=wanted.cost_us,
        chance_permille=wanted.chance,
        limit_us=limit_us,
    )


def _of_replicas(state: State, names: Iterable[str]) -> Iterator[tuple[Replica, ReplicaCaches]]:
    for name in names:
        caches = state.caches.replicas.get(name)
        if caches is not None:
            yield state.replicas[name], caches


def _first(state: State, replicas: Sequence[str], swap: int, within_us: int) -> Wanted | None:
    """What is worth most, of all that can be done in time; one after the other in each replica."""
    best: Wanted | None = None
    for replica, caches in _of_replicas(state, replicas):
        if replica.phase != "ready" or replica.suspect or caches.saving or caches.broke:
            continue
        for slot, holding in caches.slots.items():
            wanted = _wanted(state, replica, caches, slot, holding, swap)
            if wanted is None or wanted.save_us > within_us:
                continue
            if best is None or wanted.rank < best.rank:
                best = wanted
    return best


def _wanted(
    state: State, replica: Replica, caches: ReplicaCaches, slot: int, holding: Holding, swap: int
) -> Wanted | None:
    settings = state.settings.models.get(replica.model)
    of_model = state.caches.models.get(replica.model)
    if settings is None or of_model is None or of_model.given_up:
        return None
    if not caches.shape or caches.shape != settings.cache_shape or holding.tokens < state.settings.keep_min_tokens:
        return None
    if not _is_idle(replica, caches, holding):
        return None
    if caches.tried_in == swap and slot in caches.tried:
        return None
    if _is_newer_elsewhere(state, replica.model, holding) or _is_saved(of_model, holding):
        return None
    if holding.tokens * (of_model.token_bytes or 1) > state.settings.keep_budget_mib << 20:
        return None
    wanted = Wanted(state, replica.id, slot, holding, of_model)
    return wanted if wanted.worth_us > wanted.cost_us else None


def _is_idle(replica: Replica, caches: ReplicaCaches, holding: Holding) -> bool:
    """Nobody works in its slot, and whoever works in another one is known to."""
    placed = [other.rid for other in caches.slots.values()]
    working = [*replica.in_flight, *replica.releasing]
    return holding.rid not in working and all(rid in placed for rid in working)


def _is_saved(of_model: ModelCaches, holding: Holding) -> bool:
    """Its file has all of it."""
    file = of_model.files.get(holding.conversation)
    return file is not None and file.used_us >= holding.used_us and file.prefix == holding.prefix


def _is_newer_elsewhere(state: State, model: str, holding: Holding) -> bool:
    """Another slot holds a later state of the conversation, or the same one and is being saved."""
    for _, caches in _of_replicas(state, state.models[model].replicas):
        for other in caches.slots.values():
            if other.conversation == holding.conversation and other.used_us > holding.used_us:
                return True
        for other in caches.saving.values():
            if other.conversation == holding.conversation and other.used_us >= holding.used_us:
                return True
    return False


# --- restoring ------------------------------------------------------------------------------------------------------


def is_restoring(state: State, replica: str) -> bool:
    """Nothing is dispatched there yet."""
    caches = state.caches.replicas.get(replica)
    return caches is not None and bool(caches.restoring) and state.now_us < caches.restore_until_us


def holds_up(state: State, model: Model) -> bool:
    """Whether a swap that loads the model waits for a restore."""
    return bool(state.caches.replicas) and any(is_restoring(state, replica) for replica in model.replicas)


def restore(state: State, swap: Swap, model: Model) -> e.Decision | None:
    """What to restore next into a process that has just become ready: who waits first, then what was used last."""
    of_model = state.caches.models.get(model.name)
    if not state.settings.keep_caches or of_model is None or not of_model.files or of_model.given_up:
        return None
    for replica, caches in _of_replicas(state, model.replicas):
        if replica.phase != "ready" or replica.suspect or caches.served or caches.restoring or caches.broke:
            continue
        due_us = caches.restore_until_us or state.now_us + max(0, state.settings.keep_hold_us - swap.save_us)
        free = [slot for slot in range(replica.slots) if slot not in caches.slots]
        if not free or state.now_us >= due_us:
            continue
        found = _next_file(state, model, caches, of_model, len(free), due_us - state.now_us)
        if found is None:
            continue
        if not caches.restore_from_us:
            return e.TimerSet(kind="cache", key=replica.id, due_us=due_us)
        conversation, rid = found
        tokens = of_model.files[conversation].tokens
        return e.CacheRestoreOrdered(
            replica=replica.id,
            slot=free[0],
            conversation=conversation,
            tokens=tokens,
            swap=swap.id,
            rid=rid,
            worth_us=worth_us(of_model, tokens),
            cost_us=restore_us(of_model, tokens),
            limit_us=due_us - state.now_us,
        )
    return None


def _next_file(
    state: State, model: Model, caches: ReplicaCaches, of_model: ModelCaches, free: int, within_us: int
) -> tuple[str, int] | None:
    """(conversation, request that waits for it or 0). Whoever waits and has no file needs one of the free slots."""
    there = [
        conversation
        for replica in model.replicas
        if (other := state.caches.replicas.get(replica)) is not None
        for conversation in (*(holding.conversation for holding in other.slots.values()), *other.restoring.values())
    ]
    usable = {
        conversation: file
        for conversation, file in of_model.files.items()
        if file.shape == caches.shape and conversation not in there and restore_us(of_model, file.tokens) <= within_us
    }
    if not usable:
        return None
    for conversation, rid in _waiting(state, model, usable):
        if worth_us(of_model, usable[conversation].tokens) > restore_us(of_model, usable[conversation].tokens):
            return conversation, rid
    if free <= _strangers(state, model, there):
        return None
    lately = sorted(usable, key=lambda conversation: (-usable[conversation].used_us, conversation))
    for conversation in lately:
        tokens = usable[conversation].tokens
        chance = chance_permille(state, of_model, conversation)
        if worth_us(of_model, tokens) * chance // 1000 > restore_us(of_model, tokens):
            return conversation, 0
    return None


def _waiting(state: State, model: Model, usable: dict[str, File]) -> Iterator[tuple[str, int]]:
    """Files that the queue of a model goes on with, in its order: by the prompt that they begin with."""
    lane = state.lanes.get(model.name)
    if lane is None:
        return
    by_prefix = {file.prefix: conversation for conversation, file in usable.items() if file.prefix}
    for rank in sorted(rank for ranks in lane.by_key.values() for rank in ranks):
        request = state.requests[rank[2]]
        for prefix in reversed(request.prefix):
            if prefix in by_prefix:
                yield by_prefix[prefix], request.rid
                break


def _strangers(state: State, model: Model, there: list[str]) -> int:
    """How many wait whose conversation is not in a slot already."""
    lane = state.lanes.get(model.name)
    if lane is None:
        return 0
    waiting = [state.requests[rank[2]] for ranks in lane.by_key.values() for rank in ranks]
    return sum(
        request.work == "generation" and not request.op and request.conversation not in there for request in waiting
    )


def give_up_useless_caches(state: State) -> e.Decision | None:
    """Where restores bring nothing, or kill processes."""
    for name, of_model in state.caches.models.items():
        if of_model.given_up:
            continue
        if of_model.crashed:
            return e.CacheGivenUp(model=name, why="crash", restores=of_model.restores)
        if of_model.useless >= USELESS_MAX:
            return e.CacheGivenUp(model=name, why="brings_nothing", restores=of_model.restores)
    return None
