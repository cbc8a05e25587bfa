"""Explanations in plain words. Pure: what is said comes from `explain_request`, `explain_swap` and `explain_time`."""

from eventlog.pretty import pretty
from replay.explain_request import Passing, RequestStory, Wait
from replay.explain_swap import Candidate, Spared, SwapStory
from replay.explain_time import Moment
from replay.state_tables import render_state
from replay.text import aligned, clock, count, duration, listed, time_of_day
from replay.waits import MEANING
from router.scheduler.worth import USE

SHOWN = 12

PASSING: dict[Passing, str] = {
    "priority": "it has a higher priority",
    "forced": "it had waited the longest that a request may",
    "pay_out": "its model was loaded for it",
    "grace": "this one was within its grace",
    "waiting": "this one could not run at that moment",
}

WHY_SWAP: dict[str, str] = {
    "idle": "nobody wanted or used what had to leave",
    "grace_over": "its head had waited its grace of {grace}, and the victims were still wanted or busy",
    "forced": "its request had waited {force}, the longest that a request may",
    "wish": "somebody asked for the model to be loaded",
    "top_up": "a replica was missing, and there was room",
    "unload": "somebody asked for the model to be unloaded",
    "ttl": "the model had been idle for its ttl",
    "gpu_out": "a GPU was taken out of service",
    "stale": "its configuration had changed",
    "stopping": "the router was stopping",
}

NO_GRACE = "its turn had come (no grace), and the victims were still wanted or busy"
ACCRUED = "the requests for its model had waited long enough together, and the victims were still wanted or busy"

SPARED: dict[Spared, str] = {
    "cost": "others leave at a lower cost, or are fewer",
    "wanted": "queued requests wanted it",
    "busy": "it was busy",
    "age": "it was {verb} later",
    "worth": "it is used more, or takes longer to load",
    "name": "all else equal, its name comes later",
    "not needed": "enough room had been made without it",
}

ABORTED = {
    "unwanted": "nobody wanted the target any more",
    "stopping": "the router was stopping",
    "stale": "the target's configuration had changed",
    "gpu_out": "a GPU was taken out of service",
}


def request_text(story: RequestStory) -> str:
    what = "wish to load" if story.wish else "request for"
    about = [f"priority {story.priority}"] if story.priority else []
    about += [f"key {story.key}"] if story.key else []
    about += [story.route] if story.route else []
    about += [f"asked for as {story.asked}"] if story.asked else []
    lines = [
        f"{'wish' if story.wish else 'request'} {story.rid}: {what} {story.model}"
        + (f" ({', '.join(about)})" if about else ""),
        f"  arrived {clock(story.arrived_us)}, #{story.seq}",
        f"  {_outcome(story)}",
    ]
    lines.append("")
    if story.waits:
        lines.append(f"it waited {duration(story.queued_us)}")
        rows = [(duration(wait.to_us - wait.from_us), time_of_day(wait.from_us), _wait(wait)) for wait in story.waits]
        lines.append(aligned(("for", "from", "because"), rows, indent="  "))
    else:
        lines.append("it did not wait")
    if story.attempts:
        lines += ["", "it ran"]
        lines.append(aligned(("on", "from", "for", "why there", "end"), _attempts(story), indent="  "))
    if story.overtaken_by:
        lines += ["", f"{count(len(story.overtaken_by), 'later request')} went first on GPUs that it needs"]
        passed = story.overtaken_by[:SHOWN]
        overtakers = [(str(each.rid), each.model, time_of_day(each.at_us), PASSING[each.why]) for each in passed]
        lines.append(aligned(("request", "model", "at", "because"), overtakers, indent="  "))
        if len(story.overtaken_by) > SHOWN:
            lines.append(f"  and {len(story.overtaken_by) - SHOWN} more")
    elif story.waits:
        lines += ["", "no later request went first on GPUs that it needs"]
    if story.swaps:
        swaps = f"swap{'s' if len(story.swaps) > 1 else ''} {listed(story.swaps)}"
        own = f" ({listed(story.caused)} begun for it)" if story.caused else ""
        own = " (begun for it)" if story.caused == story.swaps else own
        lines += ["", f"its model was loaded by {swaps}{own}; --swap N explains it"]
    return "\n".join(lines)


def _outcome(story: RequestStory) -> str:
    if story.outcome == "open":
        return "has not ended in this log"
    after = f"after {duration(story.ended_us - story.arrived_us)}"
    details = [str(story.status)] if story.status else []
    details += [story.code] if story.code else []
    details += [story.reason] if story.reason else []
    if story.attempts and story.attempts[-1].completion_tokens >= 0:
        details.append(count(story.attempts[-1].completion_tokens, "token"))
    return f"{story.outcome} {after}" + (f": {', '.join(details)}" if details else "")


def _wait(wait: Wait) -> str:
    text = MEANING[wait.what]
    if wait.by:
        text += f": {listed([_who(who) for who in wait.by], 6)}"
    if wait.swap:
        text += f" (swap {wait.swap})"
    if wait.ahead:
        text += f"; {count(wait.ahead, 'earlier request')} for the same model"
    return text


def _who(who: str) -> str:
    return who.replace("rid:", "request ")


def _attempts(story: RequestStory) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for attempt in story.attempts:
        took = duration(attempt.to_us - attempt.from_us) if attempt.to_us >= 0 else ""
        end = attempt.end
        if attempt.first_token_us >= 0:
            end += f", first token after {duration(attempt.first_token_us)}"
        rows.append((attempt.replica, time_of_day(attempt.from_us), took, attempt.rule.replace("_", " "), end))
    return rows


# --- swaps ----------------------------------------------------------------------------------------------------------


def swap_text(story: SwapStory) -> str:
    what = f"load {story.target}" if story.target else "unload"
    gpus = f" on GPU {', '.join(map(str, story.gpus))}" if story.gpus else ""
    why = WHY_SWAP[story.why]
    if story.why == "grace_over" and story.head_release == "accrued":
        why = ACCRUED
    elif story.why == "grace_over" and not story.grace_us:
        why = NO_GRACE
    why = why.format(grace=duration(story.grace_us), force=duration(story.force_load_us))
    if story.why == "idle" and not story.victims:
        why = "there was room for it"
    lines = [
        f"swap {story.swap}: {what}{gpus}",
        f"  begun {clock(story.begun_us)}, #{story.seq}",
        f"  why then: {why}",
    ]
    if story.cause_rid:
        head = f", {duration(story.head_for_us)} of that as the blocked head" if story.head_for_us else ""
        what = "wish" if story.op else "request"
        lines.append(f"  for {what} {story.cause_rid}, which had waited {duration(story.waited_us)}{head}")
        lines.append(f"  {count(story.queued, 'request')} queued for {story.target} then")
    elif story.op:
        lines.append(f"  for operation {story.op}")
    lines += ["", *_victims(story), "", *_phases(story)]
    if story.target:
        lines += ["", _served(story)]
    return "\n".join(lines)


def _victims(story: SwapStory) -> list[str]:
    verb = "loaded" if story.eviction == "fifo" else "used"
    if not story.victims:
        return ["nobody had to leave"]
    lines = [f"who left: {_chosen(story, verb)}" if story.target else "who left"]
    head = ("model", "queued", "in flight", f"{verb} before", "gpus", "")
    rows = [_candidate(victim, _left(story, victim)) for victim in story.victims]
    rows += [_candidate(other, "stayed: " + _spared(story, other, verb)) for other in story.others]
    lines.append(aligned(head, rows, indent="  "))
    if story.draining:
        serving = listed([f"request {rid}" for rid in story.draining], 6)
        cut = "cut off, for it was by force" if story.by_force else "nobody is cut off for a swap"
        lines.append(f"  serving {serving} then; {cut}")
    return lines


def _left(story: SwapStory, victim: Candidate) -> str:
    if not story.target:
        return "left"
    if story.engine in ("matrix", "capacity"):
        return f"left, at a cost of {victim.cost}"
    return f"left, worth {_worth(victim)}" if story.eviction == "worth" else "left"


def _worth(candidate: Candidate) -> str:
    """Uses, decayed, times seconds of load."""
    return f"{candidate.worth / (USE * 1_000_000):.3g}"


def _chosen(story: SwapStory, verb: str) -> str:
    """By what rule the victims were found."""
    if story.engine == "group":
        return f"whoever the groups do not let stay beside {story.target}"
    if story.engine == "matrix":
        kept = f"that of set {story.set_name!r}" if story.set_name else "it alone, for it is in no set"
        return f"whoever is outside the cheapest combination with {story.target}: {kept}, at a cost of {story.cost}"
    if story.engine == "capacity":
        cut = "; the search was cut short there, and a cheaper one may exist" if story.search_limited else ""
        looked = f"{count(story.nodes, 'partial plan')} looked at"
        return f"the cheapest models that make room in the pools, at a cost of {story.cost} ({looked}{cut})"
    order = [] if story.why == "forced" else ["unwanted"]  # whoever is forced does not ask who else is wanted
    order += ["idle"] if story.prefer_idle else []
    if story.eviction == "worth":
        return f"the first in the order {', '.join([*order, 'worth least (uses x seconds of load)'])}"
    longest = "longest loaded" if verb == "loaded" else "longest unused"
    return f"the first in the order {', '.join([*order, longest])}"


def _spared(story: SwapStory, other: Candidate, verb: str) -> str:
    worth = f", worth {_worth(other)}" if story.eviction == "worth" and story.engine == "residency" else ""
    return SPARED[other.spared_by or "not needed"].format(verb=verb) + worth


def _candidate(candidate: Candidate, what: str) -> tuple[str, ...]:
    gpus = ",".join(map(str, candidate.gpus))
    return (
        candidate.model,
        str(candidate.wanted),
        str(candidate.in_flight),
        duration(candidate.age_us),
        gpus,
        what,
    )


def _phases(story: SwapStory) -> list[str]:
    if story.outcome == "running":
        return ["it was still under way when the log ended"]
    if story.outcome == "lost":
        return ["the router died before it was over"]
    if story.outcome == "aborted":
        why = ABORTED.get(story.abort_why, story.abort_why)
        return [f"called off after {duration(story.drain_us)}, while the victims drained: {why}"]
    total = duration(story.ended_us - story.begun_us)
    saved = f", of that {duration(story.save_us)} for saving prompt caches" if story.save_us else ""
    rows = [("drain", duration(story.drain_us) + saved), ("stop", duration(story.stop_us))]
    if story.target:
        rows.append(("load", duration(story.load_us)))
    lines = [
        f"{'done' if story.outcome == 'done' else 'FAILED'} after {total}",
        aligned(("phase", "took"), rows, indent="  "),
    ]
    for load in story.loads:
        took = f" after {duration(load.to_us - load.from_us)}" if load.to_us >= 0 else ""
        again = f", attempt {load.attempt}" if load.attempt > 1 else ""
        lines.append(f"  {load.replica}{again}: {load.end}{took}")
    return lines


def _served(story: SwapStory) -> str:
    if not story.served:
        return "it served nobody" if story.outcome in ("done", "failed") else "it has served nobody"
    until = "to the end of the log"
    if story.left_us >= 0:
        until = f"until it {'crashed' if story.ended_by_itself else 'left'} at {time_of_day(story.left_us)}"
    cost = duration(round((story.drain_us + story.stop_us + story.load_us) / story.served))
    rids = (
        listed(story.served_rids, 8)
        if story.served == len(story.served_rids)
        else f"first {listed(story.served_rids, 8)}"
    )
    return f"it served {count(story.served, 'request')} {until} ({rids}): {cost} of swapping for each"


# --- moments --------------------------------------------------------------------------------------------------------


def moment_text(moment: Moment) -> str:
    lines = [f"after #{moment.seq}", "", render_state(moment.state), "", "what happened before it"]
    lines += [f"  {pretty(event)}" for event in moment.before]
    lines.append("and after it" if moment.after else "and the log ends")
    lines += [f"  {pretty(event)}" for event in moment.after]
    return "\n".join(lines)
