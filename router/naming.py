"""Which model a request means: profiles first, then selectors, then aliases, then the model's own name.

What was chosen is part of RequestArrived (`asked`, `model`, `via`), so nobody has to choose again when the log is read.
Counterparts: `router.selection` for what is configured, `router.callers` for who asks.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from router import errors
from router.callers import Caller
from router.config import Config, ModelConfig
from router.scheduler.state import State, is_cooling
from router.selection import Selector


class Named(NamedTuple):
    """`asked` as the client wrote it; `name` the model or alias that it stands for; `via` what stood in between."""

    asked: str
    name: str
    model: ModelConfig
    via: str = ""


def resolve(
    config: Config,
    state: State,
    caller: Caller,
    asked: str | None,
    open_requests: Callable[[str], int] | None = None,
) -> Named:
    """Raises RouterError: missing, unknown, switched off, or not for this key.

    Without a name it is DEFAULT_MODEL, or the only model there is; never whichever happens to be loaded.
    `open_requests` is how many requests a model has, for whoever knows of some before the scheduler does.
    """
    if asked is None:
        asked = config.default_model or (next(iter(config.models)) if len(config.models) == 1 else None)
        if asked is None:
            raise errors.model_required(_tellable(config, caller))
    name, via = _pinned(config, state, asked)
    selector = config.selectors.get(name)
    if selector is not None:
        via = f"{via}, selector {name}" if via else f"selector {name}"
        name = choose(config, state, caller, selector, open_requests)
    model = config.resolve(name)
    if model is None:
        raise errors.model_not_found(asked, _tellable(config, caller))
    if caller.models and model.name not in caller.models:
        raise errors.error("forbidden", f"key {caller.key!r} may not use model {asked!r}", param="model")
    return Named(asked, name, model, via)


def _pinned(config: Config, state: State, asked: str) -> tuple[str, str]:
    profile = config.profiles.get(state.profile)
    if profile is None or asked not in profile.pins:
        return asked, ""
    if not profile.pins[asked]:
        message = f"model {asked!r} is switched off by the profile {state.profile!r}"
        raise errors.error("model_not_found", message, param="model")
    return profile.pins[asked], f"profile {state.profile}"


def _tellable(config: Config, caller: Caller) -> Iterable[str]:
    models = [name for name in config.listed_names() if not caller.models or config.names[name] in caller.models]
    selectors = [name for name, selector in config.selectors.items() if not selector.unlisted]
    return [*models, *(name for name in selectors if targets_for(config, caller, config.selectors[name]))]


def targets_for(config: Config, caller: Caller, selector: Selector) -> list[str]:
    """The targets that this caller may use."""
    targets = [(name, config.resolve(name)) for name in selector.targets]
    return [name for name, model in targets if model and (not caller.models or model.name in caller.models)]


# --- selectors ------------------------------------------------------------------------------------------------------


def choose(
    config: Config,
    state: State,
    caller: Caller,
    selector: Selector,
    open_requests: Callable[[str], int] | None = None,
) -> str:
    """The target for the next request. One that cools down is passed over, unless all of them do.

    * pin: the first.
    * warm: the first that is ready, else the first that is being loaded, else the first.
    * spillover: the first loaded one with fewer than `spillover` requests; else the next is loaded; when all are, the
      one with the fewest requests.
    """
    real = {target: config.names[config.resolve(target).name] for target in selector.targets}  # type: ignore[union-attr]
    targets = [name for name in selector.targets if not caller.models or real[name] in caller.models]
    targets = targets or list(selector.targets)
    usable = [name for name in targets if not _is_unusable(state, real[name])] or targets
    if selector.strategy == "warm":
        ready = [name for name in usable if _phase(state, real[name]) == "ready"]
        coming = [name for name in usable if _phase(state, real[name]) == "loading"]
        return [*ready, *coming, *usable][0]
    if selector.strategy == "pin":
        return usable[0]
    count = open_requests or (lambda name: outstanding(state, name))
    open_of = {name: count(real[name]) for name in usable}
    active = [name for name in usable if open_of[name] or _phase(state, real[name]) in ("ready", "loading")]
    for name in active:
        if open_of[name] < selector.spillover:
            return name
    for name in usable:
        if name not in active:
            return name
    return min(usable, key=lambda name: open_of[name])


def outstanding(state: State, name: str) -> int:
    """Requests for a model that wait or run."""
    model, lane = state.models.get(name), state.lanes.get(name)
    return (model.in_flight if model is not None else 0) + (lane.length if lane is not None else 0)


def _phase(state: State, name: str) -> str:
    model = state.models.get(name)
    if model is None:
        return "absent"
    return "loading" if model.target_of and model.phase != "ready" else model.phase


def _is_unusable(state: State, name: str) -> bool:
    model = state.models.get(name)
    return model is not None and is_cooling(state, model) and model.phase != "ready"
