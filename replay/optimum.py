"""The least that loading could have cost, had the future been known: exact, for a given order of requests.

Weighted paging with k slots: each request needs its model loaded; a model that stayed since its last request saves its
load. Those stays are intervals on the line of requests, and at most k - 1 may overlap at any request, since one slot
holds the model that is being served. The most valuable choice of intervals is a flow of k - 1 units along the line, on
which every interval is an arc of capacity 1 that earns its load: k - 1 shortest paths find it.

Holds for models on one GPU each. What it does not know: waiting, and that the order itself could be changed.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import groupby

import msgspec

from replay.costs import Costs
from replay.workload import Workload

_FAR = float("inf")


class Optimum(msgspec.Struct, frozen=True, kw_only=True):
    """The least for a workload; summed over its GPUs."""

    loads: int
    load_s: float
    left_out: tuple[str, ...] = ()
    """Models on several GPUs or none, and those that share a GPU with one: not reckoned."""


def least_load_us(order: Sequence[str], load_us: Mapping[str, int], slots: int) -> tuple[int, int]:
    """(microseconds, loads) of the cheapest way to serve `order` on a GPU with room for so many models."""
    if slots < 1:
        raise ValueError(f"a GPU with room for {slots} models serves nothing")
    sequence = [model for model, _ in groupby(order)]
    starts, ends, savings = _stays(sequence, load_us)
    kept = _best_stays(len(sequence), starts, ends, savings, slots - 1)
    all_us = sum(load_us[model] for model in sequence)
    return all_us - sum(savings[stay] for stay in kept), len(sequence) - len(kept)


def optimum_of(order: Sequence[str], workload: Workload, costs: Costs) -> Optimum:
    """For models served in this order under the settings of the workload, each load at its mean."""
    settings = workload.settings
    spread_out = {name for name, model in settings.models.items() if len(model.gpus) != 1 or model.replicas != 1}
    if settings.engine != "residency":
        spread_out = set(settings.models)  # what a GPU holds is not a number then
    crowded = {gpu for name in spread_out for gpu in settings.models[name].gpus}
    reckoned = {name: model.gpus[0] for name, model in settings.models.items() if name not in spread_out}
    reckoned = {name: gpu for name, gpu in reckoned.items() if gpu not in crowded}
    load_us = {name: mean_load_us(costs, name) for name in reckoned}
    total_us = loads = 0
    for gpu in sorted(set(reckoned.values())):
        here = [model for model in order if reckoned.get(model) == gpu]
        took_us, count = least_load_us(here, load_us, settings.max_models_per_gpu)
        total_us += took_us
        loads += count
    left_out = tuple(sorted(settings.models.keys() - reckoned.keys()))
    return Optimum(loads=loads, load_s=total_us / 1e6, left_out=left_out)


def mean_load_us(costs: Costs, model: str) -> int:
    times_us = costs.of(model).loads_us
    return round(sum(times_us) / len(times_us))


def _stays(sequence: Sequence[str], load_us: Mapping[str, int]) -> tuple[list[int], list[int], list[int]]:
    """Each stay of a model between two of its requests: first and last position between them, and what it saves."""
    starts, ends, savings = [], [], []
    last: dict[str, int] = {}
    for position, model in enumerate(sequence):
        if model in last:
            starts.append(last[model] + 1)
            ends.append(position)
            savings.append(load_us[model])
        last[model] = position
    return starts, ends, savings


def _best_stays(
    positions: int, starts: Sequence[int], ends: Sequence[int], savings: Sequence[int], units: int
) -> list[int]:
    """The most valuable stays of which at most `units` overlap: one shortest path per unit of flow.

    Node t lies before position t. A unit goes on to t + 1 for nothing, or along a stay from its start to its end and
    earns its saving. Potentials keep the residual costs from being negative, so Dijkstra finds the later paths.
    """
    if units <= 0 or not starts:
        return []
    leaving: list[list[int]] = [[] for _ in range(positions + 1)]
    arriving: list[list[int]] = [[] for _ in range(positions + 1)]
    for stay, (start, end) in enumerate(zip(starts, ends, strict=True)):
        leaving[start].append(stay)
        arriving[end].append(stay)
    used = [False] * len(starts)
    along = [0] * positions
    """Units that go from t to t + 1 for nothing; there may be any number."""
    potential, came = _first_path(positions, arriving, starts, savings)
    for unit in range(units):
        if unit:
            found = _next_path(positions, leaving, arriving, starts, ends, savings, used, along, potential)
            if found is None:
                break
            potential, came = found
        node = positions
        while node:
            node = _undo_or_take(came[node], node, starts, ends, used, along)
        # A path that earns nothing goes along the line, and so would all that follow.
        if potential[positions] >= 0:
            break
    return [stay for stay, taken in enumerate(used) if taken]


_ALONG, _BACK = -1, -2
"""Ways to come to a node besides a stay n: along the line; back along it. A stay undone is ~n - 2."""


def _undo_or_take(
    way: int, node: int, starts: Sequence[int], ends: Sequence[int], used: list[bool], along: list[int]
) -> int:
    """Send the unit the way that it came to this node; returns the node before."""
    if way == _ALONG:
        along[node - 1] += 1
        return node - 1
    if way == _BACK:
        along[node] -= 1
        return node + 1
    if way >= 0:
        used[way] = True
        return starts[way]
    undone = -way - 3
    used[undone] = False
    return ends[undone]


def _first_path(
    positions: int, arriving: Sequence[Sequence[int]], starts: Sequence[int], savings: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Nothing is used yet: all arcs go forward."""
    distance: list[float] = [0.0] * (positions + 1)
    came = [_ALONG] * (positions + 1)
    for node in range(1, positions + 1):
        best, way = distance[node - 1], _ALONG
        for stay in arriving[node]:
            over = distance[starts[stay]] - savings[stay]
            if over < best:
                best, way = over, stay
        distance[node], came[node] = best, way
    return distance, came


def _next_path(
    positions: int,
    leaving: Sequence[Sequence[int]],
    arriving: Sequence[Sequence[int]],
    starts: Sequence[int],
    ends: Sequence[int],
    savings: Sequence[int],
    used: Sequence[bool],
    along: Sequence[int],
    potential: Sequence[float],
) -> tuple[list[float], list[int]] | None:
    distance: list[float] = [_FAR] * (positions + 1)
    came = [_ALONG] * (positions + 1)
    distance[0] = 0.0
    heap: list[tuple[float, int]] = [(0.0, 0)]
    while heap:
        so_far, node = heappop(heap)
        if so_far > distance[node]:
            continue
        base = so_far + potential[node]
        ways: list[tuple[int, float, int]] = []
        if node < positions:
            ways.append((node + 1, base, _ALONG))
        if node and along[node - 1]:
            ways.append((node - 1, base, _BACK))
        ways += [(ends[stay], base - savings[stay], stay) for stay in leaving[node] if not used[stay]]
        ways += [(starts[stay], base + savings[stay], -stay - 3) for stay in arriving[node] if used[stay]]
        for to, cost, way in ways:
            over = cost - potential[to]
            if over < distance[to]:
                distance[to], came[to] = over, way
                heappush(heap, (over, to))
    if distance[positions] == _FAR:
        return None
    return [there + before for there, before in zip(distance, potential, strict=True)], came
