"""What happened and why, in plain words: a sentence for every reason, rule and code of the vocabulary.

Pure: rows of the tables in, text out. Counterpart: `units`, for values. Every word that `eventlog.events` knows has its
sentence here; a test looks. One that a newer router wrote is shown as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.units import UNKNOWN, count, duration, listed, moment

Row = Mapping[str, Any]

# --- why a request waits --------------------------------------------------------------------------------------------

HELD = {
    "grace": "Its model is not loaded, and what must leave for it is still in use: {by}. Its grace runs; until it is "
    "over, later requests for models that are loaded may go first",
    "claimed": "An earlier request comes first on the GPUs that it needs: {by}",
    "swapping": "A swap is under way on the GPUs that it needs: {by}",
    "protected": "An earlier request wants a model that would have to leave: {by}",
    "evicting": "A model in its way cannot leave yet: {by}",
    "gpu_out": "A GPU that its model needs is out of service",
    "cooling": "Its model failed a moment ago and is not tried again yet",
}
"""RequestHeld.why. `by`: models, or requests."""

HARD = "Its turn has come: no later request may start on what must leave."

WAITED_FOR = {
    "body": "its body was still coming",
    "drain": "the models that had to leave finished their work",
    "stop": "the processes that had to leave were being ended",
    "load": "its model was being loaded",
    "slots": "every slot of its model was taken",
    "turn": "earlier requests came first",
    "grace": "others might go first until its grace was over",
    "claimed": "an earlier request had the room that it needs",
    "swapping": "a swap had the room that it needs",
    "protected": "an earlier request wanted the model that must leave",
    "evicting": "a model in its way could not leave yet",
    "gpu_out": "a GPU that it needs was out of service",
    "cooling": "its model cooled down after failures",
}
"""A stretch of a request's time in the queue, in a few words."""

RULES = {
    "least_busy": "the least busy replica with room",
    "affinity": "of the least busy ones, the replica that served this conversation last",
    "pay_out": "the model was loaded for it",
    "alone": "it was running when a replica crashed, so the second time it runs alone",
}
"""RequestDispatched.rule."""

REQUEUED = {
    "upstream_lost": "the connection to its replica broke before any of the answer had reached the client",
    "replica_gone": "its replica was stopped before any of the answer had reached the client",
}
"""RequestRequeued.why."""

PASSING = {
    "forced": "it had waited the longest that a request may",
    "priority": "it has a higher priority",
    "pay_out": "its model was loaded for it",
    "grace": "this one was within its grace",
    "waiting": "this one could not run at that moment",
}
"""Why a later request could go first."""

# --- how things end -------------------------------------------------------------------------------------------------

OUTCOMES = {
    "ok": "Answered",
    "error": "llama-server answered with an error",
    "failed": "Ended by the router with an error",
    "rejected": "Refused on arrival",
    "cancelled": "Cancelled",
    "lost": "Lost: the router itself ended before the request did",
}
"""requests.outcome."""

CANCELLED_BY = {
    "client": "the client closed the connection",
    "admin": "somebody cancelled it by hand",
    "deadline": "its time limit was over",
    "shutdown": "the router was stopping and its time for that was over",
    "delete": "the client deleted its stream",
    "fault": "the router made a mistake of its own; its diary says which",
}
"""RequestCancelled.by."""

FINISH_REASONS = {
    "stop": "the model came to an end",
    "length": "it reached the limit of tokens",
    "tool_calls": "the model called a tool",
    "end_turn": "the model came to an end",
    "max_tokens": "it reached the limit of tokens",
    "tool_use": "the model called a tool",
    "stop_sequence": "a stop sequence appeared",
}
"""As llama-server says them, in the words of both APIs."""

ERROR_CODES = {
    "invalid_http": "the request was not valid HTTP",
    "invalid_body": "its body could not be read",
    "invalid_parameter": "one of its values is not allowed",
    "model_required": "it named no model, and there are several",
    "model_already_loaded": "the model is loaded already",
    "unauthorized": "it had no valid API key",
    "forbidden": "its API key may not do this",
    "origin_not_allowed": "a web page of another site asked",
    "model_not_found": "no model has this name",
    "replica_not_found": "no replica has this name",
    "request_not_found": "there is no such request any more",
    "conversation_not_found": "there is no such conversation any more",
    "gpu_not_found": "there is no GPU of this number",
    "profile_not_found": "there is no profile of this name",
    "not_found": "there is nothing at this address",
    "method_not_allowed": "this address is asked in another way",
    "model_not_loaded": "the model is not loaded",
    "body_too_large": "its body is larger than allowed",
    "unsupported_encoding": "its body was compressed in a way that is not understood",
    "headers_too_large": "its headers are larger than allowed",
    "uri_too_long": "its address is longer than allowed",
    "request_timeout": "its client sent it too slowly",
    "invalid_config": "the configuration has mistakes",
    "host_not_allowed": "it came under a name that is not the router's",
    "rate_limit_exceeded": "its key has used up its requests or tokens of this minute",
    "upstream_error": "llama-server broke the connection before its answer was complete",
    "upstream_crashed": "the llama-server that worked on it died",
    "upstream_stalled": "llama-server fell silent over it",
    "model_load_failed": "its model could not be loaded",
    "model_cooling_down": "its model failed a moment ago and was not tried again yet",
    "model_loading": "its model was still being loaded",
    "model_unloaded": "its model was unloaded while it waited",
    "internal_error": "the router made a mistake of its own",
    "no_capacity": "its model can never fit beside what may not leave",
    "queue_full": "the queue was full",
    "request_cancelled": "it was cancelled",
    "log_unavailable": "the event log could not be written",
    "service_unavailable": "the router could not serve just then",
    "shutting_down": "the router was stopping",
}
"""Codes of the router's errors."""

LOAD_FAILURES = {
    "missing_file": "its model file is not there",
    "bad_flag": "llama-server does not know one of its options",
    "bad_model": "the file is no model that llama-server can read",
    "gpu_oom": "the GPU had too little free memory",
    "host_oom": "the machine had too little free memory",
    "stall": "it made no progress",
    "ceiling": "it took longer than any load may",
    "exit": "the process ended by itself",
    "signal": "a signal ended the process",
    "spawn": "the process could not be started",
    "imposter": "another process answered in its place",
}
"""Why a load failed."""

EXIT_CAUSES = {
    "planned": "it ended as it was asked to",
    "exit": "the process ended by itself",
    "signal": "a signal ended the process",
    "gpu_oom": "the GPU had too little free memory",
    "host_oom": "the machine had too little free memory",
    "stall": "it worked on requests and made no data",
    "killed": "the process was killed from outside",
}
"""Why a replica that was ready ended."""

KINDS = {"crash": "Crash", "load_failed": "Failed load", "stall": "Stall"}
"""crashes.kind."""

STOP_WHY = {
    "evict": "to make room for another model",
    "unload": "somebody asked for it",
    "ttl": "it had been idle for its time limit",
    "gpu_out": "its GPU was taken out of service",
    "stale": "its configuration had changed",
    "stalled": "it made no data although it had work",
    "stopping": "the router was stopping",
}
"""ReplicaStopOrdered.why."""

ENDINGS = {
    "stopped": "stopped as ordered",
    "crashed": "crashed",
    "load_failed": "never became ready",
    "lost": "ended with the router",
}
"""replicas.ending."""

OPERATIONS = {
    "done": "done",
    "already": "it was so already",
    "failed": "it failed",
    "cancelled": "it was cancelled",
    "unknown": "there was no such thing",
    "lost": "the router ended before it was done",
}
"""AdminDone.outcome, and operations without one."""

WISHED_BY = {
    "admin": "somebody asked for it",
    "preload": "it is loaded at the start",
    "reload": "the configuration was read again",
}
"""LoadWished.by."""

TIMERS = {
    "grace": "the grace of request {key} ends",
    "force": "the request that has waited longest is moved to the front",
    "ttl": "{key} is unloaded if it is idle until then",
    "cooldown": "{key} may be loaded again",
    "drain": "the time for running requests to end is over",
    "cache": "nobody waits for prompt caches any longer",
}
"""TimerSet.kind. `key`: what stands behind it."""

# --- swaps ----------------------------------------------------------------------------------------------------------

SWAP_WHY = {
    "idle": "Nobody used or wanted what had to leave, so it began at once",
    "grace_over": "The turn of the request at the head of the queue had come, although what had to leave was in use "
    "or wanted",
    "forced": "Its request had waited the longest that a request may, so it came before everything else",
    "wish": "Somebody asked for the model to be loaded",
    "top_up": "A replica of the model was missing, and there was room for it",
    "unload": "Somebody asked for the model to be unloaded",
    "ttl": "The model had been idle for its time limit",
    "gpu_out": "A GPU was taken out of service",
    "stale": "Its configuration had changed",
    "stopping": "The router was stopping",
}
"""SwapBegun.why."""

ABORTED = {
    "unwanted": "nobody wanted the target any more",
    "stopping": "the router was stopping",
    "stale": "the configuration of the target had changed",
    "gpu_out": "a GPU was taken out of service",
}
"""SwapAborted.why."""

GIVEN_UP = {
    "brings_nothing": "twice in a row a restored one brought nothing",
    "crash": "a process died over one",
}
"""CacheGivenUp.why."""

SWAP_OUTCOMES = {
    "ok": "Done",
    "failed": "Failed",
    "aborted": "Called off",
    "lost": "The router ended before it was over",
}
"""swaps.outcome."""

SPARED = {
    "wanted": "requests were queued for it",
    "busy": "it was working",
    "age": "it was used more recently",
    "loaded": "it was loaded later",
    "worth": "it is used more, or takes longer to load",
    "name": "all else was equal, and its name comes later",
    "not needed": "there was room without it",
    "cost": "others left at a lower cost, or were fewer",
}
"""What kept a model that could have left."""


def of(words: Mapping[str, str], code: str | None) -> str:
    """The words for a code; the code itself where a newer router wrote it, a dash where there is none."""
    return UNKNOWN if not code else words.get(code, code.replace("_", " "))


def sentence(text: str) -> str:
    """With a capital letter at its beginning and a full stop at its end."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".") if text else ""


def who(names: Sequence[str] | None) -> str:
    """Models, and requests (`rid:7` in the log)."""
    return listed([name.replace("rid:", "request ") if name.startswith("rid:") else name for name in names or ()], 6)


def outcome(request: Row) -> str:
    """What became of a request, in a sentence or two."""
    ended = request.get("outcome")
    if not ended:
        if request.get("stage") == "running":
            return f"Running on {request.get('replica')}."
        return "Waiting in the queue."
    text = of(OUTCOMES, ended)
    why = ""
    if ended == "cancelled":
        why = of(CANCELLED_BY, request.get("cancelled_by"))
        if request.get("unread_frames"):
            why += f"; {count(request['unread_frames'], 'token')} had been made that nobody read"
    elif ended == "ok" and request.get("finish_reason"):
        why = of(FINISH_REASONS, request["finish_reason"])
    elif ended in ("failed", "rejected"):
        why = of(ERROR_CODES, request.get("code"))
        if request.get("begun"):
            why += "; a part of the answer had reached the client"
        if request.get("suspect"):
            why += "; it is taken to have brought its replica down"
    elif ended == "error":
        why = f"status {request.get('status')}"
    return sentence(f"{text}: {why}" if why else text)


def error(request: Row) -> str:
    """What the client was told, as far as it goes beyond `outcome`: the reason as the router or llama-server put it."""
    return str(request.get("reason") or "")


def swap_title(swap: Row) -> str:
    """What it was to do."""
    return f"load {swap['target']}" if swap.get("target") else "unload"


def swap_why(swap: Row, victims: Sequence[Row]) -> str:
    """Why it began just then."""
    why = swap.get("why")
    text = of(SWAP_WHY, why)
    if why == "idle" and not victims:
        text = "There was room for it, so it began at once"
    elif why == "grace_over" and swap.get("head_grace_us") is not None:
        text += f": {_patience(swap)}"
    elif why == "forced" and swap.get("force_load_us"):
        text = text.replace(",", f", {duration(swap['force_load_us'])} (QUEUE_FORCE_LOAD_TIMEOUT),", 1)
    if why in ("grace_over", "forced", "idle") and swap.get("cause_rid"):
        text += f". It is for request {swap['cause_rid']}, which had waited {duration(swap.get('waited_us'))}"
        if swap.get("head_since_us") and swap.get("begun_us"):
            head_us = swap["begun_us"] - swap["head_since_us"]
            if head_us > 0:
                text += f", {duration(head_us)} of that at the head of the queue"
    return sentence(text)


def _patience(swap: Row) -> str:
    """Why the head of the queue need not wait any longer, by the settings of that moment."""
    grace_us = swap["head_grace_us"]
    if swap["head_release"] == "accrued":
        most = f"; at most {duration(grace_us)}" if grace_us else ""
        return f"the requests for its model had waited long enough together (QUEUE_HEAD_RELEASE is accrued{most})"
    if not grace_us:
        return "it has no grace (QUEUE_HEAD_GRACE is 0)"
    since = "since it arrived" if swap["head_grace_from"] == "arrival" else "since it was the first that waited"
    return f"its grace of {duration(grace_us)} (QUEUE_HEAD_GRACE), {since}, was over"


def swap_outcome(swap: Row) -> str:
    """How it ended."""
    ended = swap.get("outcome")
    if not ended:
        return "Under way."
    text = of(SWAP_OUTCOMES, ended)
    if ended == "aborted":
        return sentence(f"{text} after {duration(swap.get('took_us'))}: {of(ABORTED, swap.get('abort_why'))}")
    return sentence(f"{text} after {duration(swap.get('took_us'))}")


def crash(row: Row) -> str:
    """How a replica ended, in a sentence."""
    kind, cause = row.get("kind"), row.get("cause")
    if kind == "stall":
        text = f"It worked on {count(len(row.get('rids') or ()), 'request')} and made no data for "
        return sentence(f"{text}{duration(row.get('silent_us'))}; usual is {duration(row.get('norm_us'))}")
    words = of(LOAD_FAILURES if kind == "load_failed" else EXIT_CAUSES, cause)
    how = ""
    if row.get("signal") is not None:
        how = f" (signal {row['signal']})"
    elif row.get("exit_code") is not None:
        how = f" (exit code {row['exit_code']})"
    when = "while it was being loaded, " if kind == "load_failed" else ""
    lived = f" after {duration(row['lived_us'])}" if row.get("lived_us") is not None else ""
    return sentence(f"{when}{words}{how}{lived}")


# --- decisions ------------------------------------------------------------------------------------------------------


def decision(row: Row) -> str:
    """A row of `decisions` in a sentence."""
    speak = DECISIONS.get(str(row.get("type")))
    return str(row.get("type")) if speak is None else sentence(speak(row))


def _held(row: Row) -> str:
    text = of(HELD, row.get("why")).format(by=who(row.get("blocked_by")))
    victims = row.get("victims") or []
    if victims and row.get("why") in ("claimed", "swapping", "protected", "evicting"):
        text += f". To be loaded, it needs {who(victims)} to leave"
    return f"{text}. {HARD}" if row.get("hard") else text


def _dispatched(row: Row) -> str:
    rule = of(RULES, row.get("why"))
    text = f"Sent to {row.get('replica')} after {duration(row.get('waited_us'))}: {rule}"
    if row.get("in_flight"):
        text += f"; {count(row['in_flight'], 'generation')} ran there already"
    if row.get("overtook"):
        text += f". It went before {count(row['overtook'], 'earlier request')} that still waited for a swap"
        if row.get("overtook_first"):
            text += f": {listed([f'request {rid}' for rid in row['overtook_first']])}"
    return text


def _requeued(row: Row) -> str:
    return f"Back to its place in the queue, to be sent again: {of(REQUEUED, row.get('why'))}"


def _failed(row: Row) -> str:
    return f"The router ended it with status {row.get('status')}: {of(ERROR_CODES, row.get('code'))}"


def _rejected(row: Row) -> str:
    return f"Refused on arrival with status {row.get('status')}: {of(ERROR_CODES, row.get('code'))}"


def _swap_begun(row: Row) -> str:
    leaving = [victim["model"] if isinstance(victim, Mapping) else victim for victim in row.get("victims") or []]
    what = f"to load {row['model']}" if row.get("model") else "to unload"
    text = f"Swap {row.get('swap')} begun {what}"
    if leaving:
        text += f"; {who(leaving)} must leave" if row.get("model") else f" {who(leaving)}"
    return f"{text}. {swap_why({**row, 'target': row.get('model')}, leaving)}"


def _swap_aborted(row: Row) -> str:
    return f"Swap {row.get('swap')} called off while the victims still worked: {of(ABORTED, row.get('why'))}"


def _swap_finished(row: Row) -> str:
    ended = "is done" if row.get("why") == "ok" else "failed: no replica of its target became ready"
    return f"Swap {row.get('swap')} {ended}"


def _stop_ordered(row: Row) -> str:
    return f"{row.get('replica')} is to end: {of(STOP_WHY, row.get('why'))}"


def _spawn_ordered(row: Row) -> str:
    text = f"{row.get('replica')} is to start"
    return f"{text}, attempt {row['attempt']}" if (row.get("attempt") or 1) > 1 else text


def _save_ordered(row: Row) -> str:
    return f"A prompt cache of {row.get('replica')} is to be saved before it ends"


def _restore_ordered(row: Row) -> str:
    return f"A prompt cache of {row.get('replica')} is to be restored before its first request"


def _given_up(row: Row) -> str:
    return f"Prompt caches of {row.get('model')} are not kept any more: {of(GIVEN_UP, row.get('why'))}"


def _cooled_down(row: Row) -> str:
    until_us = row.get("until_us")
    until = "the configuration changes" if until_us == -1 else moment(until_us)
    why = "it crashed again and again" if row.get("why") == "crashes" else of(LOAD_FAILURES, row.get("why"))
    return f"{row.get('model')} is not loaded again until {until}: {why}"


def _admin_done(row: Row) -> str:
    text = f"Operation {row.get('op')}: {of(OPERATIONS, row.get('why'))}"
    return f"{text}, {of(ERROR_CODES, row['code'])}" if row.get("code") else text


def _timer_set(row: Row) -> str:
    kind, _, key = str(row.get("timer") or "").partition(":")
    return f"At {moment(row.get('due_us'))} {of(TIMERS, kind).format(key=key)}"


def _timer_cancelled(row: Row) -> str:
    kind, _, key = str(row.get("timer") or "").partition(":")
    return f"No longer needed: {of(TIMERS, kind).format(key=key)}"


DECISIONS = {
    "RequestHeld": _held,
    "RequestDispatched": _dispatched,
    "RequestRequeued": _requeued,
    "RequestFailed": _failed,
    "RequestRejected": _rejected,
    "SwapBegun": _swap_begun,
    "SwapAborted": _swap_aborted,
    "SwapFinished": _swap_finished,
    "ReplicaStopOrdered": _stop_ordered,
    "ReplicaSpawnOrdered": _spawn_ordered,
    "CacheSaveOrdered": _save_ordered,
    "CacheRestoreOrdered": _restore_ordered,
    "CacheGivenUp": _given_up,
    "ModelCooledDown": _cooled_down,
    "AdminDone": _admin_done,
    "TimerSet": _timer_set,
    "TimerCancelled": _timer_cancelled,
}
"""How to say each kind of decision."""
