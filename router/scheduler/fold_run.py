"""What the router's own events mean: its start, its configuration, its end. Part of `fold.py`."""

from eventlog import events as e
from eventlog.settings import ModelSettings
from router.scheduler import fold_caches, queue, worth
from router.scheduler.fold_models import note_rest, pin
from router.scheduler.state import Answer, Model, State


def started(state: State, event: e.RouterStarted) -> None:
    assert event.at_us > 0, "0 means never in several places of the state: a run cannot begin at 0"
    assert "" not in event.config.keys, "a key has a name"
    carried = event.carried
    fresh = State(
        settings=event.config,
        run=event.run,
        policy_version=event.policy_version,
        now_us=event.at_us,
        profile=carried.profile,
        suspects=list(carried.suspects),
        last_rid=carried.next_rid - 1,
        last_op=carried.next_op - 1,
        last_swap=carried.next_swap - 1,
        last_spawn=carried.next_spawn - 1,
    )
    for field in State.__struct_fields__:
        setattr(state, field, getattr(fresh, field))
    state.reloaded = False
    for op in carried.ops:
        state.answers[op] = Answer(outcome="cancelled", reason="the router was ended before this was done")
    _place_models(state)
    for cooldown in carried.cooldowns:
        model = state.models.get(cooldown.model)
        if model is not None:
            hopeless = cooldown.remaining_us < 0
            model.cooldown_since_us = event.at_us
            model.cooldown_until_us = 0 if hopeless else event.at_us + cooldown.remaining_us
            model.failures = cooldown.failures
            model.cooldown_reason = cooldown.reason
            note_rest(state, model)


def config_loaded(state: State, event: e.ConfigLoaded) -> None:
    before, keys, forced = state.settings.models, state.settings.keys, state.settings.force_load_us
    shapes = {name: settings.cache_shape for name, settings in before.items()}
    policy = (state.settings.head_release, state.settings.head_grace_from)
    state.reloaded = True
    state.settings = event.config
    if policy != (event.config.head_release, event.config.head_grace_from):
        worth.recount_waits(state)
    if event.config.keys != keys or (event.config.force_load_us and not forced):
        assert "" not in event.config.keys, "a key has a name"
        queue.rebuild(state)
    for model in state.models.values():
        old, new = before.get(model.name), event.config.models.get(model.name)
        if old != new or model.cooldown_until_us < 0:
            # A reload is the owner saying: try again. What can get better by itself keeps its time.
            model.cooldown_until_us = 0
            model.failures = 0
            model.top_up_after_us = 0
        if new is None or old is None or _is_started_otherwise(old, new):
            model.stale = model.stale or bool(model.replicas or model.target_of)
        if new is not None and not model.replicas and not model.target_of:
            pin(state, model, new)
        note_rest(state, model)
    _place_models(state)
    fold_caches.configured(state, shapes)


def _is_started_otherwise(old: ModelSettings, new: ModelSettings) -> bool:
    """Whether processes started under the old settings are not those that the new ones ask for."""
    processes = (old.fingerprint, old.gpus, old.mask, old.replica_gpus)
    return processes != (new.fingerprint, new.gpus, new.mask, new.replica_gpus) or new.replicas < old.replicas


def _place_models(state: State) -> None:
    for name, settings in state.settings.models.items():
        if name not in state.models:
            state.models[name] = Model(name=name, mask=0)
            pin(state, state.models[name], settings)
    gpus = max([state.settings.gpus, *(model.mask.bit_length() for model in state.models.values())])
    while len(state.residents) < gpus:
        state.residents.append([])
    state.ttls = {name: True for name, settings in state.settings.models.items() if settings.ttl_us}


def profile_changed(state: State, event: e.ProfileChanged) -> None:
    state.profile = event.profile


def stopping(state: State, event: e.RouterStopping) -> None:
    state.stopping_at_us = event.deadline_us


def stopped(state: State, event: e.RouterStopped) -> None:
    state.stopped = True
