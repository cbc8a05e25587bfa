"""What came of a run, as numbers: the same for a simulation and for what was recorded, so that they compare.

A wait is from arrival to the first dispatch. Requests that never ran have none and are counted apart.
"""

from collections.abc import Iterable, Sequence

import msgspec


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one request. Times are moments, microseconds; -1 for what never came."""

    model: str
    client: str = ""
    arrived_us: int = -1
    dispatched_us: int = -1
    first_us: int = -1
    ended_us: int = -1
    end: str = ""
    """finished, cancelled, failed; empty while it runs."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    is_generation: bool = True


class Tally(msgspec.Struct, kw_only=True):
    """What is counted on the way."""

    loads: int = 0
    evictions: int = 0
    load_us: int = 0
    forced: int = 0
    overtakes: int = 0
    aborted: int = 0
    cache_hits: int = 0
    prefill_saved_us: int = 0


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Seconds, since people read them."""

    requests: int
    finished: int
    cancelled: int
    failed: int
    swaps: int
    """Loads that a wish or a request caused."""
    evictions: int
    load_s: float
    """Time spent loading, of all replicas together."""
    wait_mean_s: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wait_max_s: float
    ttft_mean_s: float
    """From arrival to the first token."""
    ttft_p95_s: float
    overtakes: int
    """Pairs of a dispatch and an earlier request that still waited for a swap on the same GPUs."""
    forced: int
    cached_share: float
    """Of all prompt tokens, those that a cache had."""
    fair_clients: float
    """Jain's index over clients of the share of their time in which they were served: 1 is equal."""
    fair_models: float
    makespan_s: float
    """From the first arrival to the last end."""
    wait_mean_by_model_s: dict[str, float] = {}
    cache_hits: int = 0
    """Requests that found a prompt cache which had survived a swap."""
    prefill_saved_s: float = 0.0
    """Time to read prompts that this saved."""


def measure(outcomes: Sequence[Outcome], tally: Tally) -> Measures:
    waits = sorted(
        (outcome.dispatched_us - outcome.arrived_us) / 1e6 for outcome in outcomes if outcome.dispatched_us >= 0
    )
    firsts = sorted((outcome.first_us - outcome.arrived_us) / 1e6 for outcome in outcomes if outcome.first_us >= 0)
    read = [outcome for outcome in outcomes if outcome.first_us >= 0]
    prompt_tokens = sum(outcome.prompt_tokens for outcome in read)
    ends = [outcome.end for outcome in outcomes]
    return Measures(
        requests=len(outcomes),
        finished=ends.count("finished"),
        cancelled=ends.count("cancelled"),
        failed=ends.count("failed"),
        swaps=tally.loads,
        evictions=tally.evictions,
        load_s=tally.load_us / 1e6,
        wait_mean_s=_mean(waits),
        wait_p50_s=_rank(waits, 0.5),
        wait_p95_s=_rank(waits, 0.95),
        wait_p99_s=_rank(waits, 0.99),
        wait_max_s=_rank(waits, 1.0),
        ttft_mean_s=_mean(firsts),
        ttft_p95_s=_rank(firsts, 0.95),
        overtakes=tally.overtakes,
        forced=tally.forced,
        cached_share=sum(outcome.cached_tokens for outcome in read) / prompt_tokens if prompt_tokens else 0.0,
        fair_clients=_fairness((outcome.client, outcome) for outcome in outcomes),
        fair_models=_fairness((outcome.model, outcome) for outcome in outcomes),
        makespan_s=_makespan_us(outcomes) / 1e6,
        wait_mean_by_model_s=_wait_by_model(outcomes),
        cache_hits=tally.cache_hits,
        prefill_saved_s=tally.prefill_saved_us / 1e6,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _rank(ordered: Sequence[float], share: float) -> float:
    """The value that this share of all do not exceed."""
    if not ordered:
        return 0.0
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _makespan_us(outcomes: Sequence[Outcome]) -> int:
    arrived = [outcome.arrived_us for outcome in outcomes if outcome.arrived_us >= 0]
    ended = [outcome.ended_us for outcome in outcomes if outcome.ended_us >= 0]
    return max(ended) - min(arrived) if arrived and ended else 0


def _fairness(named: Iterable[tuple[str, Outcome]]) -> float:
    served: dict[str, list[float]] = {}
    for name, outcome in named:
        if outcome.dispatched_us >= 0 and outcome.ended_us > outcome.arrived_us:
            share = (outcome.ended_us - outcome.dispatched_us) / (outcome.ended_us - outcome.arrived_us)
            served.setdefault(name, []).append(share)
    return jain([_mean(shares) for shares in served.values()])


def jain(values: Sequence[float]) -> float:
    """(sum)^2 / (n * sum of squares): 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _wait_by_model(outcomes: Sequence[Outcome]) -> dict[str, float]:
    waits: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.dispatched_us >= 0:
            waits.setdefault(outcome.model, []).append((outcome.dispatched_us - outcome.arrived_us) / 1e6)
    return {model: _mean(waits[model]) for model in sorted(waits)}
