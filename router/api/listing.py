"""How a model is described to clients: OpenAI's list, with what llama-server's router mode adds for its web UI.

It reads and never touches: configuration, state and view in, plain values out. It is right with nothing loaded as well:
unloaded does not mean unavailable, and the context is that of one request, as the child said or, before it ever ran, as
configured.
"""

from typing import Any

from router.api.services import Services
from router.api.view import Failure, ModelView
from router.callers import Caller
from router.config import Cost, ModelConfig
from router.naming import choose, targets_for
from router.scheduler.state import Model, State, is_cooling
from router.selection import Selector

SECRET_OPTIONS = ("--hf-token", "-hft", "--api-key", "--api-key-file")

STATUS = {"absent": "unloaded", "loading": "loading", "ready": "loaded", "draining": "loaded", "stopping": "unloaded"}
"""llama-server's words for the phases of a model."""


def entry(services: Services, model: ModelConfig, *, name: str = "") -> dict[str, Any]:
    """One model; `name` is an alias under which it is listed as well."""
    view = services.view.model(model.name)
    listed: dict[str, Any] = {
        "id": name or model.name,
        "object": "model",
        "created": services.started.at_us // 1_000_000,
        "owned_by": "llamacpp",
        "aliases": list(model.aliases),
        "tags": [],
        "status": status(services, model, view),
        "architecture": architecture(model),
        "source": "preset",
        "can_remove": False,
        "meta": meta(model, view),
    }
    if model.title:
        listed["name"] = model.title
    if model.description:
        listed["description"] = model.description
    context = listed["meta"].get("n_ctx")
    if context:
        # The names under which different clients look for it.
        listed["context_length"] = listed["max_model_len"] = context
    if model.reasoning_effort is not None:
        effort = model.reasoning_effort
        listed["reasoning_effort"] = {
            "options": list(effort.options),
            "default": effort.default or None,
            "disable": effort.disable or None,
        }
    if model.cost is not None:
        listed["pricing"] = pricing(model.cost)
        listed["cost"] = {
            "input": model.cost.input,
            "cached_input": model.cost.cached_input,
            "output": model.cost.output,
        }
    if model.metadata:
        listed["metadata"] = dict(model.metadata)
    return listed


def selector_entry(services: Services, caller: Caller, name: str, selector: Selector) -> dict[str, Any]:
    """A selector, described as the model that it would pick now."""
    config = services.config
    model = config.resolve(choose(config, services.loop.state, caller, selector))
    assert model is not None, "targets are checked when the configuration is read"
    listed = entry(services, model, name=name) | {"aliases": []}
    listed["selector"] = {"strategy": selector.strategy, "targets": targets_for(config, caller, selector)}
    for key, value in (("name", selector.title), ("description", selector.description)):
        listed.pop(key, None)
        if value:
            listed[key] = value
    if selector.metadata:
        listed["metadata"] = dict(selector.metadata)
    return listed


def status(services: Services, model: ModelConfig, view: ModelView) -> dict[str, Any]:
    """`value` in llama-server's words, `phase` in ours; a load says how far it is."""
    state = services.loop.state
    live = state.models.get(model.name)
    phase = live.phase if live is not None else "absent"
    described: dict[str, Any] = {
        "value": STATUS[phase],
        "phase": phase,
        "args": arguments(services, model),
        "preset": preset(model),
        "replicas": list(live.replicas) if live is not None else [],
    }
    if view.downloading:
        described["value"] = "downloading"
        described["progress"] = _progress("download", view.download)
    elif phase == "loading":
        described["progress"] = load_progress(services, live)
    if view.failure is not None and phase in ("absent", "stopping"):
        described |= _failed(view.failure)
    if live is not None and is_cooling(state, live):
        described["cooling_down"] = {
            "until_us": live.cooldown_until_us if live.cooldown_until_us > 0 else None,
            "failures": live.failures,
            "reason": live.cooldown_reason,
        }
    return described


def load_progress(services: Services, model: Model | None) -> dict[str, Any]:
    """The least advanced of the replicas that are starting; before there is one, the models that must leave."""
    slowest = None
    for replica in model.replicas if model is not None else ():
        seen = services.view.replicas.get(replica)
        if seen is not None and seen.ready_us < 0 and (slowest is None or seen.progress < slowest.progress):
            slowest = seen
    if slowest is None:
        return _progress("evicting", -1)
    return _progress(slowest.stage or "starting", slowest.progress)


def _progress(stage: str, value: float) -> dict[str, Any]:
    return {"stages": [stage], "current": stage, "value": value if value >= 0 else None}


def _failed(failure: Failure) -> dict[str, Any]:
    exit_code = failure.exit_code
    if exit_code is None and failure.signal is not None:
        exit_code = 128 + failure.signal
    return {
        "failed": True,
        "exit_code": exit_code,
        "failure": {
            "kind": failure.kind,
            "reason": failure.reason,
            "signal": failure.signal,
            "replica": failure.replica,
            "at_us": failure.at_us,
            "event": failure.seq,
        },
    }


def meta(model: ModelConfig, view: ModelView) -> dict[str, Any]:
    """Leaves out what is not known: a context of 0 would be a lie."""
    known: dict[str, Any] = {}
    if view.slot_ctx:
        known |= {"n_ctx": view.slot_ctx, "n_ctx_from": "replica"}
    elif model.context_hint:
        known |= {"n_ctx": model.context_hint, "n_ctx_from": "preset"}
    slots = view.slots or model.slots_hint
    if slots:
        known["n_parallel"] = slots
    if view.build:
        known["build"] = view.build
    return known


def architecture(model: ModelConfig) -> dict[str, Any]:
    """A projector makes a model see or hear; which of the two only the child knows, so both are offered."""
    has_projector = any(key in model.options for key in ("mmproj", "mmproj-url"))
    return {
        "input_modalities": ["text", "image", "audio"] if has_projector else ["text"],
        "output_modalities": ["text"],
    }


def pricing(cost: Cost) -> dict[str, str]:
    """Dollars per token as decimal strings, the form in which clients compute with them."""
    return {
        "prompt": per_token(cost.input),
        "completion": per_token(cost.output),
        "input_cache_read": per_token(cost.cached_input),
    }


def per_token(per_million: float) -> str:
    """A price per million tokens as an exact decimal per token, without an exponent."""
    text = f"{per_million / 1e6:.15f}".rstrip("0").rstrip(".")
    return text or "0"


def arguments(services: Services, model: ModelConfig) -> list[str]:
    """What its llama-server is started with, secrets blotted out."""
    shown: list[str] = list(services.config.llama_server)
    hide = False
    for argument in model.argv:
        shown.append("***" if hide else argument)
        hide = argument in SECRET_OPTIONS
    return shown


def preset(model: ModelConfig) -> str:
    """Its section of presets.ini with the global one taken in."""
    lines = "".join(f"{key} = {value}\n" for key, value in model.options.items())
    return f"[{model.name}]\n{lines}"


def gpu_status(state: State, gpu: int) -> str:
    """swapping, before serving, before idle."""
    bit = 1 << gpu
    if any(swap.mask & bit for swap in state.swaps.values()):
        return "swapping"
    replicas = [replica for replica in state.replicas.values() if replica.mask & bit]
    if any(replica.phase != "ready" for replica in replicas):
        return "swapping"
    return "serving" if any(replica.in_flight for replica in replicas) else "idle"
