"""What events mean for prompt caches: the only writer of `state.caches`. Part of `fold.py`.

Nothing here decides, and nothing happens while `keep_caches` is off.
"""

from eventlog import events as e
from router.scheduler.cache_state import (
    TURNS_MAX,
    UNPLACED_MAX,
    Caches,
    File,
    Holding,
    ModelCaches,
    ReplicaCaches,
    Restored,
    Turns,
)
from router.scheduler.state import Replica, Request, State

MEASURED_TOKENS_MIN = 64
"""Prompts shorter than this say little about the time per token."""
HIT_TOKENS_MIN = 64
"""A restore has brought something if so many tokens needed not be read: a model that cannot take a cache up again finds
none. It may be far less than was restored, since many clients leave out what a model has thought."""


def model_caches(state: State, name: str) -> ModelCaches:
    found = state.caches.models.get(name)
    if found is None:
        found = state.caches.models[name] = ModelCaches()
    return found


# --- requests -------------------------------------------------------------------------------------------------------


def arrived(state: State, request: Request, event: e.RequestArrived) -> None:
    if request.work != "generation" or not request.conversation:
        return
    request.prefix = [block.hash for block in event.prefix]
    caches = model_caches(state, request.model)
    turns = caches.turns.pop(request.conversation, None)
    caches.arrived += 1
    if turns is None:
        turns = Turns()
    else:
        caches.followed += 1
        turns.count += 1
        turns.gap_us = max(turns.gap_us, state.now_us - turns.last_us)
    turns.last_us = state.now_us
    caches.turns[request.conversation] = turns
    if len(caches.turns) > TURNS_MAX:
        del caches.turns[next(iter(caches.turns))]


def dispatched(state: State, request: Request, replica: str) -> None:
    """Who goes on with a restored cache will say whether it was of use; whoever does not may take its slot."""
    caches = state.caches.replicas.get(replica)
    if caches is None:
        return
    caches.served = True
    if request.work != "generation" or not caches.restored:
        return
    restored = caches.restored.pop(request.conversation, None)
    if restored is None or request.slots_wanted > 1:
        caches.restored = {}
    elif restored.prefix in request.prefix:
        caches.judges[request.rid] = restored


def finished(state: State, request: Request, event: e.RequestFinished) -> None:
    caches = state.caches.replicas.get(event.replica)
    if caches is None or request.work != "generation" or event.status >= 400:
        return
    timing = event.timing
    prompt_n = event.prompt_tokens
    if timing.prompt_n >= 0 and timing.cache_n >= 0:
        prompt_n = timing.prompt_n + timing.cache_n
    if timing.prompt_n >= MEASURED_TOKENS_MIN and timing.prompt_us > 0:
        of_model = model_caches(state, request.model)
        of_model.prefill_ns = _mean(of_model.prefill_ns, timing.prompt_us * 1000 // timing.prompt_n)
    made_n = max(0, timing.predicted_n, event.completion_tokens)
    cached_n = timing.cache_n if timing.cache_n >= 0 else event.cached_tokens
    restored = caches.judges.pop(request.rid, None)
    if restored is not None and cached_n >= 0:
        _judge(state, model_caches(state, request.model), restored, cached_n)
    if request.conversation and request.slots_wanted == 1 and cached_n >= 0:
        _place(state, caches, request, max(0, prompt_n) + made_n)
    else:  # it says nothing of a cache: an embedding, say, leaves none
        caches.slots = {slot: holding for slot, holding in caches.slots.items() if holding.rid != request.rid}


def _place(state: State, caches: ReplicaCaches, request: Request, tokens: int) -> None:
    """Its slot holds prompt and answer now; if nobody has said which one that is, it may still be told."""
    for holding in caches.slots.values():
        if holding.rid == request.rid:
            holding.tokens = tokens
            holding.used_us = state.now_us
            return
    caches.unplaced[request.rid] = _holding_of(state, request, tokens)
    if len(caches.unplaced) > UNPLACED_MAX:
        del caches.unplaced[next(iter(caches.unplaced))]


def _holding_of(state: State, request: Request, tokens: int) -> Holding:
    return Holding(
        conversation=request.conversation,
        tokens=tokens,
        prefix=request.prefix[-1] if request.prefix else "",
        rid=request.rid,
        used_us=state.now_us,
    )


def _judge(state: State, of_model: ModelCaches, restored: Restored, cache_n: int) -> None:
    """Whether a restore has brought anything, by the first request that went on with it."""
    if cache_n < min(HIT_TOKENS_MIN, restored.tokens // 4):
        of_model.useless += 1
        return
    of_model.useless = 0
    state.caches.hits += 1
    state.caches.saved_us += min(cache_n, restored.tokens) * of_model.prefill_ns // 1000


def slot_holds(state: State, event: e.SlotHolds) -> None:
    caches = state.caches.replicas.get(event.replica)
    if caches is None:
        return
    for slot, holding in list(caches.slots.items()):
        if slot == event.slot or (event.rid and holding.rid == event.rid):
            del caches.slots[slot]
    request = state.requests.get(event.rid)
    if not event.conversation:
        return
    if request is not None and request.replica == event.replica:
        caches.slots[event.slot] = _holding_of(state, request, event.tokens)
    else:
        known = caches.unplaced.pop(event.rid, None)
        caches.slots[event.slot] = known or Holding(
            conversation=event.conversation, tokens=event.tokens, rid=event.rid, used_us=state.now_us
        )


# --- replicas -------------------------------------------------------------------------------------------------------


def spawn_ordered(state: State, event: e.ReplicaSpawnOrdered) -> None:
    shape = state.settings.models[event.model].cache_shape if event.model in state.settings.models else ""
    state.caches.replicas[event.replica] = ReplicaCaches(model=event.model, shape=shape)


def crashed(state: State, replica: Replica) -> bool:
    """Whether it died over a file, which says nothing against the model."""
    caches = state.caches.replicas.get(replica.id)
    if caches is None or not (caches.saving or caches.restoring or caches.broke):
        return False
    model_caches(state, replica.model).crashed = True
    return True


def removed(state: State, replica: str) -> None:
    """The process is gone; what was ordered from it is still to be answered."""
    caches = state.caches.replicas.get(replica)
    if caches is not None:
        caches.slots = {}
        caches.unplaced = {}
        caches.restored = {}
        caches.judges = {}
        _forget_if_answered(state, replica, caches)


def _forget_if_answered(state: State, replica: str, caches: ReplicaCaches) -> None:
    if replica not in state.replicas and not caches.saving and not caches.restoring:
        del state.caches.replicas[replica]


# --- saves and restores ---------------------------------------------------------------------------------------------


def save_ordered(state: State, event: e.CacheSaveOrdered) -> None:
    caches = state.caches.replicas[event.replica]
    caches.saving[event.slot] = caches.slots[event.slot]
    if caches.tried_in != event.swap:
        caches.tried_in = event.swap
        caches.tried = []
    caches.tried.append(event.slot)


def saved(state: State, event: e.CacheSaved) -> None:
    caches = state.caches.replicas.get(event.replica)
    holding = caches.saving.pop(event.slot, None) if caches is not None else None
    if caches is None or holding is None:
        return
    of_model = model_caches(state, caches.model)
    of_model.files[holding.conversation] = File(
        tokens=event.tokens, bytes=event.bytes, prefix=holding.prefix, shape=caches.shape, used_us=holding.used_us
    )
    if event.tokens > 0:
        of_model.save_ns = _mean(of_model.save_ns, event.took_us * 1000 // event.tokens)
        of_model.token_bytes = _mean(of_model.token_bytes, event.bytes // event.tokens)
    _forget_if_answered(state, event.replica, caches)


def save_failed(state: State, event: e.CacheSaveFailed) -> None:
    caches = state.caches.replicas.get(event.replica)
    if caches is not None and caches.saving.pop(event.slot, None) is not None:
        caches.broke |= event.broke
        _forget_if_answered(state, event.replica, caches)


def restore_ordered(state: State, event: e.CacheRestoreOrdered) -> None:
    state.caches.replicas[event.replica].restoring[event.slot] = event.conversation


def restored(state: State, event: e.CacheRestored) -> None:
    caches = state.caches.replicas.get(event.replica)
    if caches is None or caches.restoring.pop(event.slot, None) is None:
        return
    of_model = model_caches(state, caches.model)
    of_model.restores += 1
    if event.tokens > 0:
        of_model.restore_ns = _mean(of_model.restore_ns, event.took_us * 1000 // event.tokens)
    file = of_model.files.get(event.conversation)
    if file is not None and event.replica in state.replicas:
        caches.slots[event.slot] = Holding(
            conversation=event.conversation, tokens=event.tokens, prefix=file.prefix, used_us=file.used_us
        )
        caches.restored[event.conversation] = Restored(tokens=event.tokens, prefix=file.prefix)
        model = state.models[caches.model]
        if len(model.replicas) > 1:
            model.conversations[event.conversation] = event.replica
    _forget_if_answered(state, event.replica, caches)


def restore_failed(state: State, event: e.CacheRestoreFailed) -> None:
    """Whatever was wrong with the file, it is not tried again."""
    caches = state.caches.replicas.get(event.replica)
    if caches is None or caches.restoring.pop(event.slot, None) is None:
        return
    caches.broke |= event.broke
    model_caches(state, caches.model).files.pop(event.conversation, None)
    _forget_if_answered(state, event.replica, caches)


def found(state: State, event: e.CacheFound) -> None:
    model_caches(state, event.model).files[event.conversation] = File(
        tokens=event.tokens, bytes=event.bytes, prefix=event.prefix, shape=event.shape, used_us=event.used_us
    )


def dropped(state: State, event: e.CacheDropped) -> None:
    of_model = state.caches.models.get(event.model)
    if of_model is not None:
        of_model.files.pop(event.conversation, None)


def given_up(state: State, event: e.CacheGivenUp) -> None:
    of_model = model_caches(state, event.model)
    of_model.given_up = event.why
    of_model.crashed = False
    of_model.useless = 0


# --- time and configuration -----------------------------------------------------------------------------------------


def timer_set(state: State, event: e.TimerSet) -> None:
    """The wait for saves or restores begins, of a swap, of a replica or of the whole router."""
    caches = state.caches.replicas.get(event.key)
    if event.key == "router":
        state.caches.end_from_us = state.now_us
    elif caches is not None:
        caches.restore_from_us = state.now_us
        caches.restore_until_us = event.due_us
    else:
        state.swaps[int(event.key)].save_from_us = state.now_us


def configured(state: State, before: dict[str, str]) -> None:
    """`before` is the shape of every model's caches until now: under another one, whatever was given up may work."""
    if not state.settings.keep_caches:
        state.caches = Caches()
        return
    for name, of_model in state.caches.models.items():
        settings = state.settings.models.get(name)
        if settings is None or settings.cache_shape != before.get(name, ""):
            of_model.given_up = ""
            of_model.useless = 0


def _mean(before: int, sample: int) -> int:
    """A running mean; the first sample counts whole."""
    return max(1, (3 * before + sample) // 4 if before else sample)
