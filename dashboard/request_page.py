"""The page of one request, and the same as JSON. Made anew at each change while the request lives; see story.js."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from dashboard import request_life, words
from dashboard.assets import PLOTLY
from dashboard.figures.gaps import gaps_figure
from dashboard.history import History
from dashboard.pages import Number, page
from dashboard.request_life import Life, Stretch
from dashboard.rows import Row, one
from dashboard.units import UNKNOWN, cost, count, duration, number, percent, rate, size
from projections.output import plain

SOON = 100
"""A number that is so much higher than the last one known may be that of a request that has just arrived."""

PHASES = {
    "queued": "In the queue",
    "prefill": "Prompt",
    "tokens": "Tokens",
    "running": "Running",
    "lost": "Lost attempt",
}
STATES = {
    "ok": ("ok", "answered"),
    "error": ("bad", "error"),
    "failed": ("bad", "failed"),
    "rejected": ("bad", "refused"),
    "cancelled": ("warn", "cancelled"),
    "lost": ("bad", "lost"),
}


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/dash/requests/{rid}")
    async def show(request: Request, rid: Number) -> HTMLResponse:
        life = await request_life.read(history, rid)
        if life is None:
            why, soon = await _missing(history, rid)
            return page(request, "missing.html", status=404, what=f"Request {rid}", why=why, again=soon)
        return page(request, "request.html", **shown(life))

    @router.get("/dash/api/requests/{rid}")
    async def tell(rid: Number) -> Response:
        life = await request_life.read(history, rid)
        if life is None:
            why, _ = await _missing(history, rid)
            message = f"request {rid}: {why}"
            error = {"message": message, "type": "invalid_request_error", "code": "request_not_found"}
            return JSONResponse({"error": error}, 404)
        return JSONResponse(plain(life.as_data()))

    return router


async def _missing(history: History, rid: int) -> tuple[str, bool]:
    """Why there is no such request, and whether it may come: a page may be asked for before its first line is read."""
    wish = await one(history, request_life.WISH, rid=rid)
    if wish is not None:
        ended = words.of(words.OPERATIONS, wish["outcome"]) if wish["outcome"] else "under way"
        text = f"It is no request: somebody wanted {wish['model']} to be loaded (operation {wish['op']}, {ended})."
        return text, False
    last = await one(history, "SELECT coalesce(max(rid), 0) AS rid FROM requests") or {"rid": 0}
    if last["rid"] < rid <= last["rid"] + SOON:
        return "It is not in the history yet. This page looks again.", True
    return "No request has this number, or the log no longer goes back to it.", False


def shown(life: Life) -> dict[str, Any]:
    """What the template needs."""
    request = life.request
    return {
        "life": life,
        "plotly": PLOTLY,
        "state": state_of(request),
        "outcome": words.outcome(request),
        "error": words.error(request),
        "so_far": life.now_us - request["arrived_us"],
        "tiles": tiles(life),
        "facts": facts(request),
        "phases": PHASES,
        "bar": bar(life.stretches, life.now_us),
        "figure": gaps_figure(life.gaps) if life.gaps else None,
        "passed_count": count(min(len(life.passed_by), request_life.PASSERS_SHOWN), "later request")
        + (" and more" if len(life.passed_by) > request_life.PASSERS_SHOWN else ""),
    }


def state_of(request: Row) -> dict[str, Any]:
    """A badge."""
    if request["outcome"] is None:
        running = request["stage"] == "running"
        return {"kind": "info" if running else "warn", "text": "running" if running else "queued", "busy": True}
    kind, text = STATES.get(request["outcome"], ("", request["outcome"]))
    return {"kind": kind, "text": text, "busy": False}


def tiles(life: Life) -> list[dict[str, str]]:
    """The numbers that matter most: `label`, `value`, `note`. Of a request that lives, those so far."""
    request, timing = life.request, life.timing
    load_us = request["load_wait_us"]
    waited = (duration(request["wait_us"]), f"{duration(load_us)} of it for the load" if load_us else "")
    first = (duration(request["ttft_us"]), "from its arrival")
    whole = (duration(request["total_us"]), "from arrival to end")
    answer = (_tokens(request["completion_tokens"]), rate(request["tokens_per_s"]))
    prompt = (_tokens(request["prompt_tokens"]), _cached(request))
    if request["prompt_tokens"] is None and request["estimated_tokens"]:
        prompt = (f"~{_tokens(request['estimated_tokens'])}", "by its size; nobody counted")
    if timing is not None and request["completion_tokens"] is None and request["ttft_us"] is None:
        # It goes on, or was cut off before llama-server gave its account: what was seen of the stream is left.
        seen = "so far" if life.is_live else f"when it was cut off, {rate(timing['frames_per_s'])}"
        answer = (count(timing["frames"], "token"), seen)
        if timing["first_frame_us"] is not None and request["wait_us"] is not None:
            first = (duration(request["wait_us"] + timing["first_frame_us"]), "from its arrival")
    if life.is_live:
        so_far = (duration(life.now_us - request["arrived_us"]), "so far")
        whole = so_far
        if request["stage"] == "queued":
            waited = so_far
    found = [("Waited", waited), ("First token", first), ("In all", whole)]
    found += [("Prompt", prompt), ("Answer", answer)]
    if request["cost"] is not None:
        found.append(("Cost", (cost(request["cost"]), "by the prices of its model")))
    return [{"label": label, "value": value, "note": note.replace(UNKNOWN, "")} for label, (value, note) in found]


def _tokens(value: int | None) -> str:
    return UNKNOWN if value is None else count(value, "token")


def _cached(request: Row) -> str:
    cached, prompt = request["cached_tokens"], request["prompt_tokens"]
    if cached is None or not prompt:
        return ""
    return f"{number(cached)} cached ({percent(cached / prompt)}), {number(request['uncached_tokens'])} computed"


def facts(request: Row) -> list[tuple[str, str]]:
    """What it asked for and what came of it: (name, value), only what is known."""
    status = request["status"]
    draft = None
    if request["draft_tokens"]:
        draft = f"{number(request['draft_tokens'])}, {number(request['draft_accepted_tokens'])} accepted"
    found = [
        ("route", request["route"] or None),
        ("answer", "as a stream" if request["stream"] else None if request["stream"] is None else "in one piece"),
        ("API key", request["key"] or None),
        ("client", request["client"] or None),
        ("conversation", request["conversation"] or None),
        ("priority", number(request["priority"]) if request["priority"] else None),
        ("messages", number(request["messages"]) if request["messages"] else None),
        ("tools", number(request["tools"]) if request["tools"] else None),
        ("generations", number(request["slots_wanted"]) if (request["slots_wanted"] or 1) > 1 else None),
        ("body", size(request["body_bytes"]) if request["body_bytes"] else None),
        ("limit of tokens", number(request["max_tokens"]) if request["max_tokens"] else None),
        ("replica", request["replica"]),
        ("why there", words.of(words.RULES, request["rule"]) if request["rule"] else None),
        ("attempts", number(request["attempts"]) if (request["attempts"] or 0) > 1 else None),
        ("status", str(status) if status else None),
        ("finish reason", request["finish_reason"] or None),
        ("prompt speed", rate(request["prompt_tokens_per_s"]) if request["prompt_tokens_per_s"] else None),
        ("answer speed", rate(request["tokens_per_s"]) if request["tokens_per_s"] else None),
        ("drafted tokens", draft),
        ("sent to the client", size(request["bytes_out"]) if request["bytes_out"] else None),
        ("goes on without its client", "yes" if request["detached"] else None),
    ]
    return [(name, value) for name, value in found if value is not None]


def bar(stretches: list[Stretch], now_us: int) -> list[dict[str, Any]]:
    """The stretches as parts of a bar; also gives each `shown`, its length, and `text`, what it was."""
    lengths = [max(0, (now_us if each.to_us is None else each.to_us) - each.from_us) for each in stretches]
    whole = sum(lengths) or 1
    parts = []
    for each, length in zip(stretches, lengths, strict=True):
        parts.append(
            {
                "phase": each.phase if each.phase != "queued" else f"queued {each.what}",
                "share": round(100 * length / whole, 3),
                "title": f"{PHASES[each.phase]} {duration(length)}: {each.words}",
            }
        )
    return parts
