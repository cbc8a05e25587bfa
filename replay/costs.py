"""What things cost in the pretend world: how long a model loads, stops, reads a prompt and makes a token.

`fit` measures them in a log; for a trace without outcomes they are said on the command line. Counterpart: `engine`
spends them. Times are microseconds; shares are of the time that the work takes alone.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from replay.workload import WorkloadError


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Reading a prompt, or making tokens: `(fixed_us + tokens * token_us) * slowdown`.

    slowdown = 1 + same * (others in this phase) + other * (those in the other phase) + elsewhere * (those on other
    replicas), all counted on average over the phase.
    """

    fixed_us: float = 0.0
    token_us: float
    same: float = 0.0
    other: float = 0.0
    elsewhere: float = 0.0
    spread: tuple[float, ...] = ()
    """By what factors the requests that were measured took longer or less than this; drawn anew for each request."""


class ModelCosts(msgspec.Struct, frozen=True, kw_only=True):
    """One model. The defaults are a small model on a small GPU, for traces that tell nothing."""

    slots: int = 4
    loads_us: tuple[int, ...] = (6_000_000,)
    """From the order to ready: the first for the first load, later ones are drawn from the others."""
    stops_us: tuple[int, ...] = (500_000,)
    prefill: Phase = Phase(token_us=500.0, same=1.0)
    """Prompts share the machine: two at once take twice as long."""
    decode: Phase = Phase(token_us=12_000.0, same=0.1, other=0.5)
    """Tokens of several requests are made together, each a little slower."""
    metadata_us: int = 5_000
    """A request that only needs the model loaded."""
    release_us: int = 50_000
    """From a cancel to the slot being free."""
    host_cache_tokens: int = 65_536
    """Prompts kept in the host's memory when a slot takes another; 0 for none."""
    token_bytes: int = 65_536
    """A token of a saved prompt cache; the default is that of a model of some 8 billion parameters."""
    save_token_us: float = 40.0
    restore_token_us: float = 20.0
    basis: dict[str, str] = {}
    """Of loads, stops, prefill and decode: what a figure rests on where it is not this model's own measured one."""


ASSUMED = "assumed"
"""Where costs come from that nobody has measured."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """By model, and for models that nothing is known of."""

    models: dict[str, ModelCosts] = {}
    default: ModelCosts = ModelCosts()
    source: str = ASSUMED

    def of(self, model: str) -> ModelCosts:
        return self.models.get(model, self.default)


def with_costs(costs: Costs, default: dict[str, float], by_model: Sequence[str], known: Collection[str] = ()) -> Costs:
    """Change what was fitted or assumed: `default` for all models, then `MODEL.KEY=VALUE`s, of `known` models where
    that is given. Raises WorkloadError."""
    changed = Costs(
        models={name: _changed(model, default) for name, model in costs.models.items()},
        default=_changed(costs.default, default),
        source=costs.source,
    )
    models = dict(changed.models)
    for text in by_model:
        name, _, value = text.partition("=")
        model, _, key = name.rpartition(".")
        if not model or key not in KEYS:
            keys = ", ".join(KEYS)
            raise WorkloadError(f"--cost {text}: expected MODEL.KEY=VALUE with one of the keys {keys}")
        if known and model not in known:
            raise WorkloadError(f"--cost {text}: there is no model {model!r}; there are {', '.join(sorted(known))}")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise WorkloadError(f"--cost {text}: {value!r} is not a number of 0 or more")
        models[model] = _changed(models.get(model, changed.default), {key: number})
    return msgspec.structs.replace(changed, models=models)


KEYS = {
    "slots": "generations at once in a replica",
    "load_s": "seconds to load a model",
    "stop_s": "seconds to stop it",
    "prefill_ms_per_token": "milliseconds per token of a prompt that is not cached",
    "decode_ms_per_token": "milliseconds per token made, alone",
    "decode_slowdown": "share of that time more for each further generation in the replica",
    "host_cache_tokens": "tokens of prompts kept in the host's memory",
    "cache_kib_per_token": "KiB of a saved prompt cache per token",
    "save_us_per_token": "microseconds to save a token of it",
    "restore_us_per_token": "microseconds to restore one",
}
"""What can be said on the command line."""
_PART_OF_KEY = {
    "load_s": "loads",
    "stop_s": "stops",
    "prefill_ms_per_token": "prefill",
    "decode_ms_per_token": "decode",
}


def _changed(costs: ModelCosts, values: dict[str, float]) -> ModelCosts:
    replace = msgspec.structs.replace
    for key, value in values.items():
        fields: dict[str, Any]
        if key == "slots":
            fields = {"slots": max(1, round(value))}
        elif key == "load_s":
            fields = {"loads_us": (round(value * 1_000_000),)}
        elif key == "stop_s":
            fields = {"stops_us": (round(value * 1_000_000),)}
        elif key == "prefill_ms_per_token":
            fields = {"prefill": replace(costs.prefill, token_us=value * 1000)}
        elif key == "decode_ms_per_token":
            fields = {"decode": replace(costs.decode, token_us=value * 1000)}
        elif key == "decode_slowdown":
            fields = {"decode": replace(costs.decode, same=value)}
        elif key == "cache_kib_per_token":
            fields = {"token_bytes": round(value * 1024)}
        elif key == "save_us_per_token":
            fields = {"save_token_us": value}
        elif key == "restore_us_per_token":
            fields = {"restore_token_us": value}
        else:
            fields = {"host_cache_tokens": round(value)}
        basis = {part: text for part, text in costs.basis.items() if part != _PART_OF_KEY.get(key)}
        costs = replace(costs, **fields, basis=basis)
    return costs


def told(costs: Costs, models: list[str]) -> list[str]:
    """One line per model, or a single one where all are alike."""
    lines = [(model, _line(costs.of(model))) for model in models]
    if len({line for _, line in lines}) == 1 and len(lines) > 1:
        return [f"every model: {lines[0][1]}"]
    return [f"{model}: {line}" for model, line in lines]


def _line(costs: ModelCosts) -> str:
    parts = {
        "loads": f"loads in {_mean_s(costs.loads_us):.2f} s",
        "stops": f"stops in {_mean_s(costs.stops_us):.2f} s",
        "prefill": f"prompt {_ms(costs.prefill.token_us)} ms/token",
        "decode": f"answer {_ms(costs.decode.token_us)} ms/token (+{100 * costs.decode.same:.0f} % per neighbour)",
    }
    said = [f"{text} ({costs.basis[part]})" if part in costs.basis else text for part, text in parts.items()]
    return ", ".join([f"{costs.slots} slots", *said])


def _ms(us: float) -> str:
    return f"{us / 1000:.3g}"


def _mean_s(times_us: tuple[int, ...]) -> float:
    return sum(times_us) / len(times_us) / 1_000_000
