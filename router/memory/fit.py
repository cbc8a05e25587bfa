"""The answer of `llama-router fit`: what a model takes, what was measured, and what fits beside it.

What counts is the measured figure where there is one, else the estimate. It is advice: the scheduler goes by what the
configuration says.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from router.config import Config, ModelConfig
from router.memory.cram import Cost, cost_of
from router.memory.estimate import Estimate, Unknown, estimate
from router.memory.measured import Measured
from router.text_table import aligned

CHECKPOINTS = 4
"""Context checkpoints that a long conversation is taken to have where nobody says."""
SHOWN = 5
"""Of the last loads, in text."""
CRAM_MIB = 8192
"""llama-server's own `cache-ram`."""


@dataclass(frozen=True, slots=True)
class Need:
    """MiB per GPU of all replicas of a model. `by` nothing: not known."""

    model: str
    gpus: Mapping[int, int]
    by: Literal["measured", "estimate", ""]


@dataclass(frozen=True, slots=True)
class Beside:
    """Another model on the same GPUs. `together` is MiB per shared GPU; `fits` None where a size is not known."""

    model: str
    need: Need
    together: Mapping[int, int]
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Cache:
    """The prompt cache of one replica. `capacity` is conversations of so many `tokens` in `cram_mib`."""

    cost: Cost
    tokens: int
    checkpoints: int
    cram_mib: int
    """-1: without limit."""
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Fit:
    """All of it. `totals` is MiB per GPU, as far as known; `problem` says why there is no estimate."""

    model: str
    estimate: Estimate | None
    problem: str
    measured: Mapping[int, int]
    """The most that one replica has held."""
    history: tuple[Mapping[int, int], ...]
    """The last few, oldest first."""
    loads: int
    need: Need
    totals: Mapping[int, int]
    fits: bool | None
    beside: tuple[Beside, ...]
    everyone: Beside | None
    """All models of these GPUs together, where there are more than two."""
    declare: Mapping[str, int]
    """What one replica would write into `capacities`, for pools named after GPUs."""
    cache: Cache | None


def fit(
    config: Config,
    model: ModelConfig,
    measured: Measured,
    totals: Mapping[int, int],
    *,
    tokens: int = 0,
    cram_mib: int | None = None,
    checkpoints: int | None = None,
) -> Fit:
    """`tokens` is the length of a conversation, 0 for a full slot; the last three are for the prompt cache."""
    guess, problem = _estimate(model)
    need = need_of(model, measured)
    others = [
        other for other in config.models.values() if other.name != model.name and set(other.gpus) & set(model.gpus)
    ]
    return Fit(
        model=model.name,
        estimate=guess,
        problem=problem,
        measured=measured.most.get(model.name, {}),
        history=tuple(measured.history.get(model.name, ())),
        loads=measured.loads.get(model.name, 0),
        need=need,
        totals=totals,
        fits=_fits(need.gpus, totals) if need.by else None,
        beside=tuple(_beside(need, need_of(other, measured), totals) for other in others),
        everyone=_everyone(need, [need_of(other, measured) for other in others], totals),
        declare={f"gpu{gpu}": mib for gpu, mib in _of_one(model, guess, measured).items()},
        cache=_cache(guess, model, tokens, cram_mib, checkpoints) if guess else None,
    )


def need_of(model: ModelConfig, measured: Measured) -> Need:
    """Of all its replicas."""
    most = measured.most.get(model.name)
    if most:
        groups = model.replica_gpus or (model.mask,) * model.replicas
        counts = {gpu: sum(gpu in group for group in groups) for gpu in most}
        return Need(model.name, {gpu: mib * max(1, counts[gpu]) for gpu, mib in most.items()}, "measured")
    guess, _ = _estimate(model)
    return Need(model.name, guess.gpus, "estimate") if guess else Need(model.name, {}, "")


def _estimate(model: ModelConfig) -> tuple[Estimate | None, str]:
    try:
        return estimate(model), ""
    except Unknown as problem:
        return None, str(problem)


def _fits(gpus: Mapping[int, int], totals: Mapping[int, int]) -> bool | None:
    known = [mib <= totals[gpu] for gpu, mib in gpus.items() if gpu in totals]
    return all(known) if len(known) == len(gpus) else None


def _beside(need: Need, other: Need, totals: Mapping[int, int]) -> Beside:
    if not need.by or not other.by:
        return Beside(other.model, other, {}, None)
    together = {gpu: mib + other.gpus[gpu] for gpu, mib in need.gpus.items() if gpu in other.gpus}
    return Beside(other.model, other, together, _fits(together, totals))


def _everyone(need: Need, others: Sequence[Need], totals: Mapping[int, int]) -> Beside | None:
    if len(others) < 2 or not all(each.by for each in (need, *others)):
        return None
    sums = {gpu: mib + sum(other.gpus.get(gpu, 0) for other in others) for gpu, mib in need.gpus.items()}
    return Beside(f"all {len(others) + 1}", need, sums, _fits(sums, totals))


def _of_one(model: ModelConfig, guess: Estimate | None, measured: Measured) -> Mapping[int, int]:
    """MiB per GPU of a single replica; of those on a GPU of its own, each counts there."""
    if most := measured.most.get(model.name):
        return most
    count = 1 if model.replica_gpus else model.replicas
    return {gpu: mib // count for gpu, mib in guess.gpus.items()} if guess else {}


def _cache(guess: Estimate, model: ModelConfig, tokens: int, cram_mib: int | None, checkpoints: int | None) -> Cache:
    written = model.options.get("cache-ram", str(CRAM_MIB))
    cram = int(float(written)) if cram_mib is None else cram_mib
    count = CHECKPOINTS if checkpoints is None else checkpoints
    length = tokens or guess.context // (guess.slots if model.slots_hint else 1)
    cost = cost_of(guess.shape, model, count)
    return Cache(cost, length, count, cram, None if cram < 0 else cost.capacity(length, cram))


# --- shown ----------------------------------------------------------------------------------------------------------


def as_json(found: Fit) -> dict[str, Any]:
    """Plain data; keys of GPUs are texts, as JSON has it."""
    guess = found.estimate
    cache = found.cache
    return {
        "model": found.model,
        "estimate": guess
        and {
            "gpus": _keyed(guess.gpus),
            "parts": asdict(guess.parts),
            "context": guess.context,
            "context_is_asked": guess.context_is_asked,
            "slots": guess.slots,
            "layers": {kind: guess.shape.count(kind) for kind in ("growing", "sliding", "state", "none")},
            "window": guess.shape.window,
        },
        "problem": found.problem or None,
        "measured": {"loads": found.loads, "gpus": _keyed(found.measured), "history": list(map(_keyed, found.history))}
        if found.measured
        else None,
        "need": {"by": found.need.by or None, "gpus": _keyed(found.need.gpus)},
        "totals": _keyed(found.totals),
        "fits": found.fits,
        "beside": [
            {
                "model": other.model,
                "by": other.need.by or None,
                "gpus": _keyed(other.need.gpus),
                "together": _keyed(other.together),
                "fits": other.fits,
            }
            for other in found.beside
        ],
        "all": {"together": _keyed(found.everyone.together), "fits": found.everyone.fits} if found.everyone else None,
        "declare": dict(found.declare),
        "prompt_cache": cache
        and {
            "fixed_mib": round(cache.cost.fixed_mib, 1),
            "growth_kib": round(cache.cost.growth_kib, 2),
            "tokens": cache.tokens,
            "checkpoints": cache.checkpoints,
            "cram_mib": cache.cram_mib,
            "capacity": cache.capacity,
        },
    }


def _keyed(gpus: Mapping[int, int]) -> dict[str, int]:
    return {str(gpu): mib for gpu, mib in gpus.items()}


WORDS = {True: "fits", False: "does not fit", None: "not known whether it fits"}


def as_text(found: Fit) -> Iterable[str]:
    """For a terminal."""
    guess = found.estimate
    yield found.model
    if guess is None:
        yield f"  no estimate: {found.problem}"
    else:
        parts, shape = guess.parts, guess.shape
        yield f"  estimate   {_sizes(guess.gpus) or 'no GPU'}"
        yield (
            f"             weights {parts.weights_mib:,}, cache {parts.growing_mib + parts.fixed_mib:,} for "
            f"{guess.context:,} tokens, buffers {parts.buffers_mib:,} MiB per replica, "
            f"{parts.host_mib:,} MiB on the CPU"
        )
        yield (
            f"             {shape.count('growing')} of {len(shape.layers)} layers grow with the context"
            + (f", {shape.count('sliding')} keep {shape.window:,} tokens" if shape.count("sliding") else "")
            + (f", {shape.count('state')} keep one state" if shape.count("state") else "")
        )
        if not guess.context_is_asked:
            yield "             ctx-size is not set: llama-server may take a shorter context to fit in"
    if found.measured:
        yield f"  measured   {_sizes(found.measured)} at most, of one replica in {_count(found.loads, 'load')}"
        yield f"             lately {'; '.join(map(_sizes, found.history[-SHOWN:]))}"
    else:
        yield "  measured   never: it was not loaded yet, or NVML is not there"
    if found.need.by:
        yield f"  alone      {_of(found.need.gpus, found.totals)}: {WORDS[found.fits]}"
    for other in found.beside:
        said = _of(other.together, found.totals) if other.together else "its size is not known"
        yield f"  beside     {other.model} ({other.need.by or 'unknown'}): together {said}: {WORDS[other.fits]}"
    if found.everyone is not None:
        said = _of(found.everyone.together, found.totals)
        yield f"  together   {found.everyone.model} models there: {said}: {WORDS[found.everyone.fits]}"
    if found.declare:
        yield f'  declare    "capacities": {json.dumps(found.declare)}'
    if found.cache is not None:
        yield from _cache_lines(found.cache)


def as_table(found: Iterable[Fit]) -> str:
    """Several models, a line each."""
    rows = [("MODEL", "COUNTS WITH", "ESTIMATE", "MEASURED", "LOADS")]
    for each in found:
        guess = _sizes(each.estimate.gpus) or "no GPU" if each.estimate else "unknown"
        rows.append((each.model, each.need.by or "-", guess, _sizes(each.measured) or "-", str(each.loads)))
    return aligned(rows)


def _cache_lines(cache: Cache) -> Iterable[str]:
    cost, tokens = cache.cost, cache.tokens
    yield (
        f"  cram       a conversation of {tokens:,} tokens takes {cost.of(tokens):,.0f} MiB of it: "
        f"{cost.fixed_mib:,.0f} MiB with {_count(cache.checkpoints, 'checkpoint')} and "
        f"{cost.growth_kib:.1f} KiB per token"
    )
    if cache.capacity is None:
        yield "             without a limit as many fit as the machine has memory for"
    else:
        yield f"             {cache.cram_mib:,} MiB hold {cache.capacity:,}; a round over more finds none of them again"


def _sizes(gpus: Mapping[int, int]) -> str:
    return ", ".join(f"{mib:,} MiB on GPU {gpu}" for gpu, mib in gpus.items())


def _of(gpus: Mapping[int, int], totals: Mapping[int, int]) -> str:
    return (
        ", ".join(
            f"{mib:,} of {totals[gpu]:,} MiB on GPU {gpu}" if gpu in totals else f"{mib:,} MiB on GPU {gpu}"
            for gpu, mib in gpus.items()
        )
        or "no GPU"
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
