"""The story of one swap: why then, why these victims, what it cost and whom, and what came of it.

`read` asks the tables; everything below it is pure. Counterpart of `replay explain --swap`, which folds the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard import words
from dashboard.history import History
from dashboard.rows import Row, one, rows

SHOWN = 50

SWAPS = """(
    SELECT swaps.*, head_grace_us, head_grace_from, head_release, force_load_us, eviction
    FROM swaps ASOF LEFT JOIN settings ON swaps.seq >= settings.seq
)"""
"""Swaps with the settings that their moment was decided by; null where the log no longer tells."""
SWAP = f"SELECT * FROM {SWAPS} WHERE swap = $swap"
CANDIDATES = "SELECT * FROM swap_candidates WHERE swap = $swap ORDER BY place"
LOADED = "SELECT * FROM replicas WHERE swap = $swap ORDER BY ordered_us"
STOPPED = """
SELECT replicas.replica, replicas.model, orders.at_us, orders.why, replicas.ended_us, replicas.escalated,
    replicas.stop_forced
FROM decisions AS orders
JOIN replicas USING (replica)
WHERE orders.type = 'ReplicaStopOrdered' AND orders.swap = $swap
-- A second order is the same with force.
QUALIFY row_number() OVER (PARTITION BY replica ORDER BY orders.seq) = 1
ORDER BY orders.seq
"""
DRAINED = """
SELECT rid, model, replica, ended_us, outcome FROM requests
WHERE dispatched_us <= $begun_us AND coalesce(ended_us, $until_us) > $begun_us AND list_contains($victims, model)
    AND coalesce(ended_us, $until_us) <= $until_us
ORDER BY rid
"""
_WAITED = "swap = $swap OR (model = $target AND stage = 'queued' AND arrived_us < $until_us AND $is_open)"
WAITED = f"""
SELECT rid, model, key, arrived_us, wait_us, load_wait_us, stage, outcome FROM requests
WHERE {_WAITED} ORDER BY rid
"""
WAITED_COUNT = f"""
SELECT count(*) AS requests, coalesce(sum(load_wait_us), 0)::BIGINT AS load_wait_us FROM requests WHERE {_WAITED}
"""
SERVED = """
SELECT rid, dispatched_us, outcome, completion_tokens FROM requests
WHERE list_contains($replicas, replica) ORDER BY dispatched_us
"""
SERVED_COUNT = """
SELECT count(*) AS requests, sum(completion_tokens)::BIGINT AS tokens, min(rid) AS first, max(ended_us) AS last_us
FROM requests WHERE list_contains($replicas, replica)
"""
NEXT = """
SELECT swap, begun_us, target, why FROM swaps
WHERE swap > $swap AND list_has_any(footprint, $gpus) ORDER BY swap
"""
LEFT_BY = """
SELECT swaps.swap, swaps.begun_us, swaps.target FROM swap_candidates
JOIN swaps USING (swap)
WHERE swap_candidates.chosen AND swap_candidates.model = $model AND swaps.swap > $swap
    AND swaps.begun_us <= coalesce($gone_us, swaps.begun_us)
ORDER BY swaps.swap
"""
"""`gone_us`: when the last process that the swap loaded had ended, NULL while one lives. Later, another loaded it."""


@dataclass
class Story:
    """All that a page shows of a swap. Rows have the columns of the tables."""

    swap: Row
    now_us: int
    candidates: list[Row]
    """In the order of choice, with `words`: that it left, or what kept it."""
    loaded: list[Row]
    stopped: list[Row]
    drained: list[Row]
    """Requests that its victims still had to finish."""
    waited: list[Row]
    """Requests that waited for it, the first of them."""
    waited_count: int
    waited_us: int
    """For this load, all of them together."""
    served: list[Row]
    served_count: int
    served_tokens: int
    left_by: Row | None
    """The swap that took the target away again."""
    next: list[Row]
    """Later swaps on the same GPUs."""

    @property
    def is_live(self) -> bool:
        return self.swap["outcome"] is None

    @property
    def victims(self) -> list[Row]:
        return [candidate for candidate in self.candidates if candidate["chosen"]]

    @property
    def cost_per_request_us(self) -> int | None:
        """Of swapping, for each request that the load served."""
        took_us = self.swap["took_us"]
        return round(took_us / self.served_count) if took_us is not None and self.served_count else None

    def as_data(self) -> Row:
        """For JSON."""
        return {
            "swap": self.swap,
            "live": self.is_live,
            "now_us": self.now_us,
            "words": {"why": words.swap_why(self.swap, self.victims), "outcome": words.swap_outcome(self.swap)},
            "candidates": self.candidates,
            "loaded": self.loaded,
            "stopped": self.stopped,
            "drained": self.drained,
            "waited": self.waited,
            "served": {"requests": self.served_count, "tokens": self.served_tokens, "first": self.served},
            "cost_per_request_us": self.cost_per_request_us,
            "left_by": self.left_by,
            "next": self.next,
        }


async def read(history: History, number: int) -> Story | None:
    """The swap of this number; None if the tables have none. Raises QuestionFailed."""
    swap = await one(history, SWAP, swap=number)
    if swap is None:
        return None
    run = await one(history, "SELECT last_us FROM runs WHERE run = $run", run=swap["run"])
    now_us = swap["ended_us"] or max((run or {}).get("last_us") or 0, swap["begun_us"])
    candidates = await rows(history, CANDIDATES, swap=number)
    loaded = await rows(history, LOADED, swap=number)
    replicas = [replica["replica"] for replica in loaded]
    victims = [candidate["model"] for candidate in candidates if candidate["chosen"]]
    drained = []
    if victims and swap["drain_us"] != 0:
        until_us = swap["begun_us"] + swap["drain_us"] if swap["drain_us"] is not None else now_us
        drained = await rows(history, DRAINED, begun_us=swap["begun_us"], until_us=until_us, victims=victims)
    is_open = swap["outcome"] is None
    waiting = {"swap": number, "target": swap["target"], "until_us": now_us, "is_open": is_open}
    waited = await one(history, WAITED_COUNT, **waiting) or {}
    counted = await one(history, SERVED_COUNT, replicas=replicas) if replicas else None
    left_by = (
        await one(history, LEFT_BY, model=swap["target"], swap=number, gone_us=gone_us(loaded)) if loaded else None
    )
    return Story(
        swap=swap,
        now_us=now_us,
        candidates=spared(
            candidates, forced=swap["why"] == "forced", engine=swap["engine"], eviction=swap["eviction"] or "lru"
        ),
        loaded=loaded,
        stopped=await rows(history, STOPPED, swap=number),
        drained=drained,
        waited=await rows(history, WAITED, SHOWN, **waiting),
        waited_count=waited.get("requests", 0),
        waited_us=waited.get("load_wait_us", 0),
        served=await rows(history, SERVED, 12, replicas=replicas) if replicas else [],
        served_count=(counted or {}).get("requests") or 0,
        served_tokens=(counted or {}).get("tokens") or 0,
        left_by=left_by,
        next=await rows(history, NEXT, 5, swap=number, gpus=swap["footprint"]),
    )


def gone_us(replicas: Sequence[Row]) -> int | None:
    """When the last of them had ended; None while one lives."""
    ends = [replica["ended_us"] for replica in replicas]
    return None if None in ends else max(ends, default=None)


def spared(candidates: Sequence[Row], *, forced: bool, engine: str = "residency", eviction: str = "lru") -> list[Row]:
    """Each with `words`: why it left or stayed. A forced swap does not ask who is wanted; other engines weigh costs."""
    victims = [candidate for candidate in candidates if candidate["chosen"]]
    found = []
    for candidate in candidates:
        if candidate["chosen"]:
            text = "left"
        else:
            why = kept_by(candidate, victims, forced=forced) if engine == "residency" else "cost"
            why = "loaded" if why == "age" and eviction == "fifo" else why
            text = f"stayed: {words.SPARED[why]}"
        found.append({**candidate, "words": text})
    return found


def kept_by(candidate: Row, victims: Sequence[Row], *, forced: bool) -> str:
    """The first part of the order of choice that puts a model behind every victim that it could have replaced."""
    rivals = [victim for victim in victims if set(victim["gpus"]) & set(candidate["gpus"])]
    if not rivals:
        return "not needed"
    by_worth = candidate["worth"] is not None or any(rival["worth"] is not None for rival in rivals)
    last = max(_order(rival, by_worth, forced) for rival in rivals)
    ours = _order(candidate, by_worth, forced)
    if ours <= last:
        return "not needed"
    names = ("wanted", "busy", "worth" if by_worth else "age", "name")
    return next(name for name, our, their in zip(names, ours, last, strict=True) if our != their)


def _order(candidate: Row, by_worth: bool, forced: bool) -> tuple[bool, bool, int, str]:
    """As the scheduler's order of choice: smaller leaves first; a greater age is an older use."""
    last = candidate["worth"] or 0 if by_worth else -candidate["age_us"]
    return (not forced and candidate["wanted"] > 0, candidate["in_flight"] > 0, last, candidate["model"])
