"""Costs, measured in a log: least squares over the requests that came to their end.

A phase of a request took `(fixed + tokens * per token) * (1 + same * a + other * b + elsewhere * c)`, where a, b and c
are the neighbours that it had on average: in the same phase, in the other one, and in other replicas. Both factors
are linear once the other is known, so they are solved for in turn. No coefficient may be negative.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from replay.costs import Costs, ModelCosts, Phase
from replay.recorded import Durations, Service
from replay.text import count

SAMPLES_MIN = 8
"""Models with fewer requests are not fitted on their own."""
RATIO_TOKENS_MIN = 64
"""With too few requests for a fit, so many tokens still tell how long one takes, by plain division."""
ROUNDS = 12
SPREAD_MAX = 200
_NEIGHBOURS = tuple[float, float, float]
_PHASES = ("prefill", "decode")


def fit(durations: Durations, source: str, models: Collection[str] = ()) -> Costs:
    """What every model of a recording cost; the default is that of all of them together.

    `models`: those that are to be told of even if they were never loaded.
    """
    services = [service for service in durations.services if service.ended_us > service.begun_us]
    neighbours = _neighbours(services)
    together = _fit_model(services, neighbours, durations, "", ModelCosts(basis=dict.fromkeys(_PHASES, "assumed")))
    names = sorted({*models, *durations.loads_us, *(service.model for service in services)})
    fitted = {name: _fit_model(services, neighbours, durations, name, together) for name in names}
    return Costs(models=fitted, default=together, source=source)


def _fit_model(
    services: Sequence[Service],
    neighbours: Sequence[tuple[_NEIGHBOURS, _NEIGHBOURS]],
    durations: Durations,
    model: str,
    fallback: ModelCosts,
) -> ModelCosts:
    """Of one model, or of all with an empty name; what is not known comes from the fallback."""
    prompts: list[tuple[float, float, _NEIGHBOURS]] = []
    answers: list[tuple[float, float, _NEIGHBOURS]] = []
    for service, (in_prompt, in_answer) in zip(services, neighbours, strict=True):
        if not service.whole or model not in ("", service.model) or service.first_us < 0:
            continue
        if service.read_tokens >= 0:
            prompts.append((service.first_us - service.begun_us, service.read_tokens, in_prompt))
        if service.made_tokens > 1 and service.ended_us > service.first_us:
            answers.append((service.ended_us - service.first_us, service.made_tokens - 1, in_answer))
    every_load = [load_us for loads_us in durations.loads_us.values() for load_us in loads_us]
    every_stop = [stop_us for stops_us in durations.stops_us.values() for stop_us in stops_us]
    loads_us = tuple(durations.loads_us.get(model, [] if model else every_load))
    stops_us = tuple(durations.stops_us.get(model, [] if model else every_stop))
    prefill, prefill_basis = _phase(prompts, fallback.prefill, fallback.basis.get("prefill", ""), has_fixed=True)
    decode, decode_basis = _phase(answers, fallback.decode, fallback.basis.get("decode", ""), has_fixed=False)
    basis = {
        "loads": "" if loads_us else _ASSUMED_NONE if not every_load else "as the other models",
        "stops": "" if stops_us else _ASSUMED_NONE if not every_stop else "as the other models",
        "prefill": prefill_basis,
        "decode": decode_basis,
    }
    return ModelCosts(
        slots=durations.slots.get(model, max(durations.slots.values(), default=fallback.slots)),
        loads_us=loads_us or fallback.loads_us,
        stops_us=stops_us or fallback.stops_us,
        prefill=prefill,
        decode=decode,
        metadata_us=_median(durations.metadata_us) or fallback.metadata_us,
        release_us=_median(durations.releases_us) or fallback.release_us,
        token_bytes=round(_per_token(durations.saves, model, 1)) or fallback.token_bytes,
        save_token_us=_per_token(durations.saves, model, 2) or fallback.save_token_us,
        restore_token_us=_per_token(durations.restores, model, 2) or fallback.restore_token_us,
        basis={part: text for part, text in basis.items() if text},
    )


_ASSUMED_NONE = "assumed: none in the log"


def _phase(
    samples: Sequence[tuple[float, float, _NEIGHBOURS]], fallback: Phase, fallback_basis: str, *, has_fixed: bool
) -> tuple[Phase, str]:
    """Fitted, else by time over tokens, else the fallback; and what it rests on, empty where it was fitted."""
    fitted = _fit_phase(samples, has_fixed=has_fixed)
    if fitted is not None:
        return fitted, ""
    few = f"too few requests ({len(samples)} of {SAMPLES_MIN})"
    made = sum(tokens for _, tokens, _ in samples)
    if made >= RATIO_TOKENS_MIN:
        # What neighbours cost cannot be told from so few; it is taken out as the fallback has it.
        shares = (fallback.same, fallback.other, fallback.elsewhere)
        alone_us = sum(
            took_us / (1.0 + sum(share * count for share, count in zip(shares, near, strict=True)))
            for took_us, _, near in samples
        )
        ratio = msgspec.structs.replace(fallback, fixed_us=0.0, token_us=alone_us / made, spread=())
        return ratio, f"time per token of {count(len(samples), 'request')}"
    return fallback, f"assumed: {few}" if fallback_basis.startswith("assumed") else f"as all models: {few}"


def _per_token(moves: Mapping[str, Sequence[tuple[int, int, int]]], model: str, part: int) -> float:
    """Bytes or microseconds per token of saved prompt caches; 0 where there was none. Of all with an empty name."""
    meant = [move for name, each in moves.items() for move in each if model in ("", name)]
    tokens = sum(move[0] for move in meant)
    return sum(move[part] for move in meant) / tokens if tokens else 0.0


def _fit_phase(samples: Sequence[tuple[float, float, _NEIGHBOURS]], *, has_fixed: bool) -> Phase | None:
    """(took_us, tokens, neighbours) -> costs; None with too few samples."""
    if len(samples) < SAMPLES_MIN:
        return None
    slowing = [0.0, 0.0, 0.0]
    fixed_us = token_us = 0.0
    for _ in range(ROUNDS):
        works = []
        for took_us, tokens, near in samples:
            slowdown = 1.0 + sum(share * count for share, count in zip(slowing, near, strict=True))
            works.append(([1.0 if has_fixed else 0.0, tokens], took_us / slowdown))
        fixed_us, token_us = solve_nonnegative([row for row, _ in works], [value for _, value in works])
        alone = [fixed_us + token_us * tokens for _, tokens, _ in samples]
        slowing = solve_nonnegative(
            [[work * count for count in near] for work, (_, _, near) in zip(alone, samples, strict=True)],
            [took_us - work for work, (took_us, _, _) in zip(alone, samples, strict=True)],
        )
    reckoned = [
        (fixed_us + token_us * tokens) * (1.0 + sum(share * count for share, count in zip(slowing, near, strict=True)))
        for _, tokens, near in samples
    ]
    # Least squares heed the long ones; together, all of them shall take as long as they did.
    scale = sum(took_us for took_us, _, _ in samples) / (sum(reckoned) or 1.0)
    factors = [took_us / (us * scale) for (took_us, _, _), us in zip(samples, reckoned, strict=True) if us > 0]
    return Phase(
        fixed_us=fixed_us * scale,
        token_us=token_us * scale,
        same=slowing[0],
        other=slowing[1],
        elsewhere=slowing[2],
        spread=_thinned(sorted(factors)),
    )


def _thinned(ordered: Sequence[float]) -> tuple[float, ...]:
    """At most so many of them, evenly."""
    step = max(1, -(-len(ordered) // SPREAD_MAX))
    return tuple(round(factor, 4) for factor in ordered[step // 2 :: step])


def solve_nonnegative(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Least squares by the normal equations; what would be negative is left out (as 0), worst first."""
    width = len(rows[0])
    products = [[sum(row[i] * row[j] for row in rows) for j in range(width)] for i in range(width)]
    right = [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(width)]
    # A little of each diagonal keeps features that never vary, or never occur, from blowing up.
    scale = max(products[i][i] for i in range(width)) or 1.0
    kept = [i for i in range(width) if products[i][i] > 1e-12 * scale]
    while kept:
        solution = _solve(
            [[products[i][j] * (1.0 + 1e-9 * (i == j)) for j in kept] for i in kept], [right[i] for i in kept]
        )
        worst = min(range(len(kept)), key=lambda place: solution[place])
        if solution[worst] >= 0:
            found = dict(zip(kept, solution, strict=True))
            return [found.get(i, 0.0) for i in range(width)]
        del kept[worst]
    return [0.0] * width


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss with pivots."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if not rows[column][column]:
            rows[column][column] = 1.0
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [rows[place][size] / rows[place][place] for place in range(size)]


def _neighbours(services: Sequence[Service]) -> list[tuple[_NEIGHBOURS, _NEIGHBOURS]]:
    """For each service, who was there on average while it read, and while it made tokens.

    One sweep over all beginnings and ends, keeping integrals over time of how many are in each phase.
    """
    moments: list[tuple[int, int, int]] = []
    for place, service in enumerate(services):
        first_us = service.first_us if service.first_us >= 0 else service.ended_us
        moments += [(service.begun_us, 0, place), (first_us, 1, place), (service.ended_us, 2, place)]
    moments.sort()
    now: dict[str, list[int]] = {}
    """Per replica: slots that read, slots that make tokens."""
    area: dict[str, list[float]] = {}
    since: dict[str, int] = {}
    total, total_area, total_since = 0, 0.0, 0
    marks: list[list[tuple[float, float, float]]] = [[] for _ in services]
    for at_us, kind, place in moments:
        service = services[place]
        here = now.setdefault(service.replica, [0, 0])
        areas = area.setdefault(service.replica, [0.0, 0.0])
        passed_us = at_us - since.get(service.replica, at_us)
        areas[0] += here[0] * passed_us
        areas[1] += here[1] * passed_us
        since[service.replica] = at_us
        total_area += total * (at_us - total_since)
        total_since = at_us
        marks[place].append((areas[0], areas[1], total_area))
        if kind == 0:
            here[0] += service.weight
            total += service.weight
        elif kind == 1:
            here[0] -= service.weight
            here[1] += service.weight
        else:
            here[1] -= service.weight
            total -= service.weight
    found = []
    for service, (begun, first, ended) in zip(services, marks, strict=True):
        first_us = service.first_us if service.first_us >= 0 else service.ended_us
        found.append(
            (
                _mean(begun, first, first_us - service.begun_us, 0),
                _mean(first, ended, service.ended_us - first_us, 1),
            )
        )
    return found


def _mean(before: tuple[float, float, float], after: tuple[float, float, float], us: int, phase: int) -> _NEIGHBOURS:
    """Neighbours besides the one itself (one slot of its own is not counted) between two marks."""
    if us <= 0:
        return (0.0, 0.0, 0.0)
    reading, making, everywhere = ((b - a) / us for a, b in zip(before, after, strict=True))
    same, other = (reading, making) if phase == 0 else (making, reading)
    return (max(0.0, same - 1.0), other, max(0.0, everywhere - reading - making))


def _median(values: Sequence[int]) -> int:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0
