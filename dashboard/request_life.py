"""The life of one request: what it waited for and how long, where it ran, how its tokens came, who passed whom.

`read` asks the tables; everything below it is pure. Counterpart of `replay explain --request`, which folds the log for
it; this is made of the tables alone, so that a page may ask for it again and again while the request still runs.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from dashboard import swap_story, words
from dashboard.history import History
from dashboard.rows import Row, one, parsed, rows
from dashboard.units import duration

PASSERS_SHOWN = 50
DECISIONS_SHOWN = 200
POINTS_MAX = 2000
"""Points of a figure; more gaps are joined, the longest of each group kept."""

REQUEST = "SELECT * FROM requests WHERE rid = $rid"
WISH = "SELECT * FROM operations WHERE rid = $rid AND kind = 'load'"
TIMING = "SELECT * FROM token_timings WHERE rid = $rid"
TOKENS = "SELECT at_us, frames, first_frame_us, gaps_us FROM token_seconds WHERE rid = $rid ORDER BY seq"
QUEUED = "SELECT min(at_us) AS at_us FROM queue_depth WHERE rid = $rid"
DECISIONS = "SELECT * FROM decisions WHERE rid = $rid AND type NOT IN ('TimerSet', 'TimerCancelled') ORDER BY seq"
MOVES = """
SELECT * FROM decisions WHERE rid = $rid AND type IN ('RequestDispatched', 'RequestRequeued') ORDER BY seq
"""
HOLDS = """
SELECT seq, at_us, rid, why, blocked_by FROM decisions
WHERE type = 'RequestHeld' AND model = $model AND rid <= $rid
    AND at_us BETWEEN $from_us AND $to_us AND seq >= $seq
ORDER BY seq
"""
SWAPS = f"""
SELECT * FROM {swap_story.SWAPS}
WHERE target = $model AND begun_us < $to_us AND coalesce(ended_us, $to_us) > $from_us
ORDER BY swap
"""
VICTIMS = "SELECT swap, model FROM swap_candidates WHERE chosen AND list_contains($swaps, swap) ORDER BY swap, place"
REPLICAS = """
SELECT replica, swap, gpus, ordered_us, ready_us, stop_ordered_us, ended_us, slots FROM replicas
WHERE model = $model AND ordered_us < $to_us AND coalesce(ended_us, $to_us) >= $from_us
ORDER BY ordered_us
"""
PASSED_BY = """
SELECT passing.rid, passing.at_us, passing.why AS rule, later.model, later.priority
FROM decisions AS passing
JOIN replicas USING (replica)
JOIN requests AS later ON later.rid = passing.rid
WHERE passing.type = 'RequestDispatched' AND passing.rid > $rid
    AND passing.at_us BETWEEN $from_us AND $to_us AND passing.seq >= $seq
    AND list_has_any(replicas.gpus, $gpus)
ORDER BY passing.seq
"""
GPUS = "SELECT gpus FROM model_configs WHERE model = $model AND at_us <= $at_us ORDER BY seq DESC"


@dataclass
class Stretch:
    """Some time with one reason. `to_us` None: it goes on."""

    phase: str
    """`queued`, `prefill`, `tokens`, `running` (where nothing tells these two apart), `lost` (an attempt)."""
    what: str
    from_us: int
    to_us: int | None
    words: str
    by: list[str] = field(default_factory=list)
    swap: int | None = None
    attempt: int = 1

    @property
    def shown(self) -> str:
        """How long it took; empty while it goes on."""
        return "" if self.to_us is None else duration(self.to_us - self.from_us)

    @property
    def text(self) -> str:
        """What it was, and whom it was for."""
        others = [name for name in self.by if self.phase == "queued"]
        swap = f" (swap {self.swap})" if self.swap else ""
        return f"{self.words}{f': {words.who(others)}' if others else ''}{swap}"


@dataclass
class Life:
    """All that a page shows of a request. Rows have the columns of the tables."""

    request: Row
    now_us: int
    """The last moment that is known of: its end or, while it lives, that of its run."""
    stretches: list[Stretch]
    decisions: list[Row]
    """With `words`; the first of them."""
    decisions_more: bool
    overtook: list[int]
    overtook_count: int
    passed_by: list[Row]
    """With `why` in words."""
    swaps: list[Row]
    timing: Row | None
    gaps: list[tuple[int, int]]
    """Moment of a token, from the last dispatch on, and the time since the one before; microseconds."""

    @property
    def is_live(self) -> bool:
        return self.request["outcome"] is None

    def as_data(self) -> Row:
        """For JSON."""
        return {
            "request": self.request,
            "live": self.is_live,
            "now_us": self.now_us,
            "words": {"outcome": words.outcome(self.request), "error": words.error(self.request)},
            "stretches": [asdict(stretch) for stretch in self.stretches],
            "decisions": self.decisions,
            "overtook": {"count": self.overtook_count, "first": self.overtook},
            "passed_by": self.passed_by,
            "swaps": self.swaps,
            "timing": self.timing,
            "gaps": self.gaps,
        }


async def read(history: History, rid: int) -> Life | None:
    """The request of this number; None if the tables have none. Raises QuestionFailed."""
    request = await one(history, REQUEST, rid=rid)
    if request is None:
        return None
    run = await one(history, "SELECT last_us FROM runs WHERE run = $run", run=request["run"])
    from_us: int = request["arrived_us"]
    last_us = (run or {}).get("last_us") or from_us
    now_us: int = request["ended_us"] or max(last_us, from_us)
    decisions = await rows(history, DECISIONS, DECISIONS_SHOWN + 1, rid=rid)
    moves = await rows(history, MOVES, rid=rid)
    is_away = bool(moves) and moves[-1]["type"] == "RequestDispatched"
    waited_until_us = moves[-1]["at_us"] if is_away else now_us
    span: dict[str, Any] = {"model": request["model"], "from_us": from_us, "to_us": waited_until_us}
    found = {
        "swaps": await rows(history, SWAPS, 100, **span),
        "replicas": await rows(history, REPLICAS, 200, **span),
        "holds": await rows(history, HOLDS, 2000, rid=rid, seq=request["seq"] or 0, **span),
    }
    swaps = found["swaps"]
    victims = await rows(history, VICTIMS, swaps=[swap["swap"] for swap in swaps]) if swaps else []
    for swap in swaps:
        swap["victims"] = [victim["model"] for victim in victims if victim["swap"] == swap["swap"]]
        swap["words"] = words.swap_why(swap, swap["victims"])
    queued = await one(history, QUEUED, rid=rid)
    config = await one(history, GPUS, model=request["model"], at_us=waited_until_us)
    passed_by = await rows(
        history,
        PASSED_BY,
        PASSERS_SHOWN + 1,
        rid=rid,
        seq=request["seq"] or 0,
        from_us=from_us,
        to_us=waited_until_us,
        gpus=(config or {}).get("gpus") or [],
    )
    dispatches = [row for row in moves if row["type"] == "RequestDispatched"]
    in_queue_us = (queued or {}).get("at_us") or from_us
    tokens = await rows(history, TOKENS, rid=rid)
    return Life(
        request=request,
        now_us=now_us,
        stretches=sorted(
            [
                *waits(request, moves, found["holds"], swaps, found["replicas"], in_queue_us, now_us),
                *runs(request, dispatches, moves, tokens[0]["first_frame_us"] if tokens else None),
            ],
            key=lambda stretch: stretch.from_us,
        ),
        decisions=[said(row) for row in decisions[:DECISIONS_SHOWN]],
        decisions_more=len(decisions) > DECISIONS_SHOWN,
        overtook=[rid for row in dispatches for rid in row["overtook_first"] or []],
        overtook_count=sum(row["overtook"] or 0 for row in dispatches),
        passed_by=[{**row, "words": passing(row, request, found["holds"])} for row in passed_by],
        swaps=swaps,
        timing=await one(history, TIMING, rid=rid),
        gaps=gaps(tokens),
    )


def said(row: Row) -> Row:
    """A decision with what it means, and without what its type does not have."""
    kept = {name: value for name, value in row.items() if value is not None}
    for name in ("victims", "others"):
        if name in kept:
            kept[name] = parsed(kept[name])
    return {**kept, "words": words.decision(kept)}


# --- the time in the queue ------------------------------------------------------------------------------------------


def waits(
    request: Row,
    moves: Sequence[Row],
    holds: Sequence[Row],
    swaps: Sequence[Row],
    replicas: Sequence[Row],
    in_queue_us: int,
    now_us: int,
) -> list[Stretch]:
    """Its time in the queue, cut into stretches with one reason each, without a gap.

    `moves`: its dispatches, and the decisions by which it came back. `holds`, `swaps`, `replicas` are those of its
    model while it waited; `in_queue_us`: its body was complete.
    """
    found: list[Stretch] = []
    arrived_us = request["arrived_us"]
    if in_queue_us > arrived_us:
        found.append(Stretch("queued", "body", arrived_us, in_queue_us, words.WAITED_FOR["body"]))
    attempt = 1
    for from_us, to_us in _in_queue(request, moves, in_queue_us):
        end_us = now_us if to_us is None else to_us
        cuts = {from_us, end_us}
        for swap in swaps:
            cuts.update(at_us for _, at_us in _phases(swap, replicas, end_us))
        cuts.update(hold["at_us"] for hold in holds)
        for replica in replicas:
            cuts.update(replica[name] for name in ("ready_us", "stop_ordered_us", "ended_us") if replica[name])
        moments = sorted(cut for cut in cuts if from_us <= cut <= end_us)
        for begin_us, stop_us in pairwise(moments):
            what, by, number = _waits_for(begin_us, request, holds, swaps, replicas, end_us)
            last = found[-1] if found else None
            if last is not None and last.to_us == begin_us and (last.what, last.swap) == (what, number):
                last.to_us = stop_us
                last.by = list(dict.fromkeys([*last.by, *by]))
            else:
                text = words.of(words.WAITED_FOR, what)
                found.append(Stretch("queued", what, begin_us, stop_us, text, by, number, attempt))
        if to_us is None and found and found[-1].to_us == end_us:
            found[-1].to_us = None
        attempt += 1
    return found


def _in_queue(request: Row, moves: Sequence[Row], in_queue_us: int) -> list[tuple[int, int | None]]:
    """Its stays in the queue; the last one has no end while it is there."""
    stays: list[tuple[int, int | None]] = []
    since_us: int | None = in_queue_us
    for row in moves:
        if row["type"] == "RequestDispatched" and since_us is not None:
            stays.append((since_us, row["at_us"]))
            since_us = None
        elif row["type"] == "RequestRequeued":
            since_us = row["at_us"]
    if since_us is not None:
        stays.append((since_us, request["ended_us"]))
    return stays


def _phases(swap: Row, replicas: Sequence[Row], now_us: int) -> list[tuple[str, int]]:
    """Drain, stop, load and the end of a swap, each with the moment of its beginning."""
    begun_us = swap["begun_us"]
    phases = [("drain", begun_us)]
    if swap["drain_us"] is not None:
        drained_us = begun_us + swap["drain_us"]
        phases += [("stop", drained_us), ("load", drained_us + swap["stop_us"])]
    else:
        ordered = [replica["ordered_us"] for replica in replicas if replica["swap"] == swap["swap"]]
        if ordered:
            phases.append(("load", min(ordered)))
    if swap["ended_us"] is not None:
        phases.append(("end", swap["ended_us"]))
    return phases


def _waits_for(
    at_us: int, request: Row, holds: Sequence[Row], swaps: Sequence[Row], replicas: Sequence[Row], now_us: int
) -> tuple[str, list[str], int | None]:
    """What it waits for from this moment on: (what, whom by, swap)."""
    if any(
        replica["ready_us"] is not None
        and replica["ready_us"] <= at_us
        and at_us < (replica["stop_ordered_us"] or replica["ended_us"] or now_us + 1)
        for replica in replicas
    ):
        return "slots", [], None
    for swap in swaps:
        phases = _phases(swap, replicas, now_us)
        place = bisect_right([begun_us for _, begun_us in phases], at_us) - 1
        if place >= 0 and phases[place][0] != "end":
            what = phases[place][0]
            return what, [request["model"]] if what == "load" else list(swap.get("victims") or []), swap["swap"]
    place = bisect_right([hold["at_us"] for hold in holds], at_us) - 1
    if place >= 0:
        return holds[place]["why"], list(holds[place]["blocked_by"] or []), None
    return "turn", [], None


# --- its time on a replica ------------------------------------------------------------------------------------------


def runs(request: Row, dispatches: Sequence[Row], moves: Sequence[Row], first_frame_us: int | None) -> list[Stretch]:
    """Its attempts. Of the last one, reading the prompt and writing tokens are told apart where that is known.

    `first_frame_us`: from the dispatch to the first token, as seen while it still runs.
    """
    found: list[Stretch] = []
    requeued = [row for row in moves if row["type"] == "RequestRequeued"]
    for number, row in enumerate(dispatches, 1):
        later = dispatches[number]["seq"] if number < len(dispatches) else None
        lost_us = next((each["at_us"] for each in requeued if _between(row["seq"], each["seq"], later)), None)
        if lost_us is not None:
            text = f"on {row['replica']}, which was lost"
            found.append(Stretch("lost", "lost", row["at_us"], lost_us, text, [row["replica"]], attempt=number))
        else:
            first_us = request["first_token_us"] if request["first_token_us"] is not None else first_frame_us
            found += _last_run(request, row, first_us, number)
    return found


def _between(first: int, seq: int, last: int | None) -> bool:
    return first < seq and (last is None or seq < last)


def _last_run(request: Row, row: Row, first_us: int | None, attempt: int) -> list[Stretch]:
    begun_us, ended_us = row["at_us"], request["ended_us"]

    def stretch(phase: str, from_us: int, to_us: int | None, text: str) -> Stretch:
        return Stretch(phase, phase, from_us, to_us, text, [row["replica"]], attempt=attempt)

    if request["work"] != "generation":
        return [stretch("running", begun_us, ended_us, "answered without a generation")]
    if not request["stream"]:
        return [stretch("running", begun_us, ended_us, "read the prompt and wrote the answer")]
    if first_us is None:
        return [stretch("prefill", begun_us, ended_us, "read the prompt; no token came")]
    seen_us = begun_us + first_us
    return [
        stretch("prefill", begun_us, seen_us, "read the prompt, up to the first token"),
        stretch("tokens", seen_us, ended_us, "wrote tokens"),
    ]


def gaps(seconds: Sequence[Row]) -> list[tuple[int, int]]:
    """(moment since the dispatch, time since the frame before) of each frame after the first, in microseconds."""
    found: list[tuple[int, int]] = []
    at_us = 0
    for row in seconds:
        if row["first_frame_us"] is not None:
            at_us = row["first_frame_us"]
        for gap_us in row["gaps_us"] or []:
            at_us += gap_us
            found.append((at_us, gap_us))
    if len(found) <= POINTS_MAX:
        return found
    size = -(-len(found) // POINTS_MAX)
    groups = (found[place : place + size] for place in range(0, len(found), size))
    return [max(group, key=lambda point: point[1]) for group in groups]


# --- the order ------------------------------------------------------------------------------------------------------


def passing(row: Row, request: Mapping[str, Any], holds: Sequence[Row]) -> str:
    """Why this later request could go first."""
    if row["priority"] > request["priority"]:
        return words.PASSING["priority"]
    if row["rule"] == "pay_out":
        return words.PASSING["pay_out"]
    place = bisect_right([hold["at_us"] for hold in holds], row["at_us"]) - 1
    if place >= 0 and holds[place]["why"] == "grace":
        return words.PASSING["grace"]
    return words.PASSING["waiting"]
