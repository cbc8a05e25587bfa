"""The page of one swap, and the same as JSON. It is made anew at each change while the swap lasts; see story.js."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from dashboard import swap_story, words
from dashboard.history import History
from dashboard.pages import Number, page
from dashboard.swap_story import Story
from dashboard.units import count, duration, gpus
from projections.output import plain

MISSING = "No swap has this number, or the log no longer goes back to it."
STATES = {"ok": ("ok", "done"), "failed": ("bad", "failed"), "aborted": ("warn", "called off"), "lost": ("bad", "lost")}


def routes(history: History) -> APIRouter:
    router = APIRouter()

    @router.get("/dash/swaps/{swap}")
    async def show(request: Request, swap: Number) -> HTMLResponse:
        story = await swap_story.read(history, swap)
        if story is None:
            return page(request, "missing.html", status=404, what=f"Swap {swap}", why=MISSING, again=False)
        return page(request, "swap.html", **shown(story))

    @router.get("/dash/api/swaps/{swap}")
    async def tell(swap: Number) -> Response:
        story = await swap_story.read(history, swap)
        if story is None:
            error = {"message": f"swap {swap}: {MISSING}", "type": "invalid_request_error", "code": "not_found"}
            return JSONResponse({"error": error}, 404)
        return JSONResponse(plain(story.as_data()))

    return router


def shown(story: Story) -> dict[str, Any]:
    """What the template needs."""
    swap = story.swap
    parts = phases(story)
    whole = sum(part["us"] for part in parts) or 1
    kind, text = STATES.get(swap["outcome"], ("info", "under way"))
    return {
        "story": story,
        "state": {"kind": kind, "text": text, "busy": story.is_live},
        "why": words.swap_why(swap, story.victims),
        "outcome": words.swap_outcome(swap),
        "tiles": tiles(story),
        "phases": parts,
        "bar": [
            {
                "phase": f"queued {part['name']}",
                "share": round(100 * part["us"] / whole, 3),
                "title": f"{part['name']} {duration(part['us'])}",
            }
            for part in parts
        ],
        "stop_why": words.STOP_WHY,
        "endings": words.ENDINGS,
        "failures": words.LOAD_FAILURES,
        "by_worth": any(candidate["worth"] is not None for candidate in story.candidates),
        "by_load": swap["eviction"] == "fifo",
    }


def phases(story: Story) -> list[dict[str, Any]]:
    """Drain, stop and load, as far as they are known: `name`, `us`, `words`."""
    swap = story.swap
    if swap["drain_us"] is None:
        return []
    drain = "waiting until the victims had no more work" if story.drained else "the victims had no work"
    said = [("drain", drain if story.victims else "nobody had to leave"), ("stop", "until their processes were gone")]
    if swap["target"]:
        said.append(("load", "until the target answered"))
    return [{"name": name, "us": swap[f"{name}_us"] or 0, "words": text} for name, text in said]


def tiles(story: Story) -> list[dict[str, str]]:
    swap = story.swap
    took_us = swap["took_us"] if swap["took_us"] is not None else story.now_us - swap["begun_us"]
    found = [
        ("Took", duration(took_us), "so far" if story.is_live else "from the decision to the end"),
        ("On", gpus(swap["footprint"]), "requests for others do not notice"),
        (
            "Waited for it",
            count(story.waited_count, "request"),
            f"{duration(story.waited_us)} in all" if story.waited_us else "",
        ),
    ]
    if swap["target"]:
        cost_us = story.cost_per_request_us
        note = f"{duration(cost_us)} of swapping for each" if cost_us is not None else ""
        found.append(("Served then", count(story.served_count, "request"), note))
    return [{"label": label, "value": value, "note": note} for label, value, note in found]
