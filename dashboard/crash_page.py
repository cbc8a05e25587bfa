"""The list of crashes, and the page of one: what the tables know at once, and its post-mortem as soon as it is made."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from dashboard import words
from dashboard.assets import PLOTLY
from dashboard.commands import CommandFailed
from dashboard.figures.memory import memory_figure
from dashboard.history import History
from dashboard.pages import Number, page
from dashboard.postmortems import Made, Postmortems
from dashboard.rows import Row, one, rows
from dashboard.units import count, duration, gpus, listed, size
from projections.output import plain

LISTED = 200
NEXT_SHOWN = 60
NOTES_SHOWN = 40
MISSING = "No crash, failed load or stall stands at this line of the log, or the log no longer goes back to it."

LIST = """
SELECT seq, at_us, run, replica, model, kind, cause, reason, exit_code, signal, lived_us, silent_us, norm_us, rids
FROM crashes ORDER BY seq DESC
"""
CRASH = "SELECT * FROM crashes WHERE seq = $seq"
REPLICA = "SELECT * FROM replicas WHERE replica = $replica"
SAME = """
SELECT count(*) AS n, min(seq) AS first, max(seq) FILTER (WHERE seq < $seq) AS before,
    min(seq) FILTER (WHERE seq > $seq) AS after
FROM crashes WHERE model = $model
"""

HURT = {
    "cut off": "its answer was cut off",
    "sent again": "it was sent again",
    "failed": "it failed",
    "delayed": "it had to wait",
    "refused": "it was refused",
}
"""`how` of `hurt` in a post-mortem."""


def routes(history: History) -> APIRouter:
    router = APIRouter()
    postmortems = Postmortems(history.log_dir)

    @router.get("/dash/crashes")
    @router.get("/dash/crashes/", include_in_schema=False)
    async def show_all(request: Request) -> HTMLResponse:
        found = await rows(history, LIST, LISTED + 1)
        crashes = [{**row, "words": words.crash(row)} for row in found]
        return page(request, "crashes.html", crashes=crashes[:LISTED], more=len(found) > LISTED, kinds=words.KINDS)

    @router.get("/dash/api/crashes")
    async def tell_all() -> JSONResponse:
        found = await rows(history, LIST, LISTED)
        return JSONResponse(plain([{**row, "words": words.crash(row)} for row in found]))

    @router.get("/dash/crashes/{seq}")
    async def show(request: Request, seq: Number) -> HTMLResponse:
        crash = await one(history, CRASH, seq=seq)
        if crash is None:
            return page(request, "missing.html", status=404, what=f"Crash #{seq}", why=MISSING, again=False)
        made = postmortems.known(seq)
        failure = postmortems.failure(seq)
        if made is None and (not failure or not request.query_params.get("part")):
            postmortems.begin(seq)
        return page(
            request,
            "crash.html",
            crash=crash,
            words_of_it=words.crash(crash),
            kinds=words.KINDS,
            replica=await one(history, REPLICA, replica=crash["replica"]),
            same=await one(history, SAME, model=crash["model"], seq=seq),
            since_s=postmortems.since_s(seq),
            failure=failure if made is None and postmortems.since_s(seq) is None else "",
            plotly=PLOTLY,
            told=None if made is None else shown(made),
        )

    @router.get("/dash/api/crashes/{seq}")
    async def tell(seq: Number) -> Response:
        crash = await one(history, CRASH, seq=seq)
        if crash is None:
            return _error(404, "not_found", f"crash #{seq}: {MISSING}")
        try:
            made = await postmortems.made(seq)
        except CommandFailed as error:
            return _error(502, "internal_error", f"the post-mortem could not be made: {error}")
        return JSONResponse({"crash": plain(crash), "words": words.crash(crash), "postmortem": made.story})

    @router.get("/dash/crashes/{seq}/postmortem.txt")
    async def text(seq: Number) -> Response:
        return await _download(seq, "txt", "text/plain; charset=utf-8")

    @router.get("/dash/crashes/{seq}/bundle.zip")
    async def bundle(seq: Number) -> Response:
        return await _download(seq, "zip", "application/zip")

    async def _download(seq: int, ending: str, media_type: str) -> Response:
        if await one(history, CRASH, seq=seq) is None:
            return _error(404, "not_found", f"crash #{seq}: {MISSING}")
        try:
            made = await postmortems.made(seq)
        except CommandFailed as error:
            return _error(502, "internal_error", f"the post-mortem could not be made: {error}")
        headers = {
            "content-disposition": f'attachment; filename="crash-{seq}.{ending}"',
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
        }
        return Response(made.text if ending == "txt" else made.bundle, headers=headers, media_type=media_type)

    return router


def _error(status: int, code: str, message: str) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": code}}, status)


# --- a post-mortem, for the template ----------------------------------------------------------------------------------


def shown(made: Made) -> dict[str, Any]:
    """The parts of it, each ready to be shown; `postmortem --json` gives what stands here."""
    story = made.story
    incident = story["incident"]
    return {
        "number": incident["number"],
        "of": story["of"],
        "suspects": [suspected(suspect) for suspect in story["suspects"]],
        "served": [served(row, incident["at_us"]) for row in story["served"]],
        "memory": [memory(int(gpu), samples, incident["at_us"]) for gpu, samples in sorted(story["memory"].items())],
        "lines": incident.get("last_lines") or [],
        "next": [step(row) for row in story["next"][:NEXT_SHOWN]],
        "next_more": max(0, len(story["next"]) - NEXT_SHOWN),
        "down": down(story["down_us"]),
        "hurt": [{**row, "how": HURT.get(row["how"], row["how"]), "for": _for(row["for_us"])} for row in story["hurt"]],
        "running": [
            {**row, "on": gpus(row["gpus"]), "slots": f"{row['load']} of {row['slots'] or '?'}"}
            for row in story["running"]
            if row["replica"] != incident["replica"]
        ],
        "notes": story["notes"][-NOTES_SHOWN:],
        "earlier": story["earlier"],
        "settled": made.settled,
    }


SUSPECTS = {
    "gpu memory": "The memory of {name}",
    "main memory": "The main memory of {name}",
    "signal": "{name} from outside",
    "configuration": "The configuration of {name}",
}


def suspected(suspect: Row) -> Row:
    """Who it is, in words, and why."""
    name = SUSPECTS.get(suspect["kind"], f"{suspect['kind'].capitalize()} {{name}}").format(name=suspect["name"])
    return {"name": name, "evidence": "; ".join(suspect["evidence"])}


def served(row: Row, at_us: int) -> Row:
    """A request that it was serving."""
    tokens = row.get("tokens") or []
    frames = sum(number for _, number in tokens)
    if tokens:
        said = f"{count(frames, 'frame')}, the last seen {duration(at_us - tokens[-1][0])} before"
    else:
        said = "none seen" if row.get("stream") else "it did not stream"
    prompt = (
        f"about {count(row['prompt_tokens'], 'token')}" if row.get("prompt_tokens") else size(row.get("body_bytes"))
    )
    since_us = row.get("since_us") or 0
    return {
        "rid": row["rid"],
        "for": duration(at_us - since_us) if since_us else duration(None),
        "attempt": row.get("attempt", 1),
        "prompt": prompt,
        "key": row.get("key", ""),
        "conversation": (row.get("conversation") or "")[:12],
        "tokens": said,
    }


def memory(gpu: int, samples: list[list[int]], at_us: int) -> Row:
    """What is known of a GPU's memory before: a sentence and, with two samples or more, a figure."""
    known = [sample for sample in samples if sample[1] >= 0]
    if not known:
        return {"gpu": gpu, "words": "the driver does not tell", "figure": None}
    total = known[-1][2]
    most = max(sample[1] for sample in known)
    text = f"at most {most:,} MiB in use, {known[-1][1]:,} MiB at the end"
    if total > 0:
        text += f", of {total:,} MiB ({100 * known[-1][1] / total:.0f} %)"
    figure = memory_figure(known, at_us) if len(known) > 1 else None
    return {"gpu": gpu, "words": text, "figure": figure}


def down(us: int) -> str:
    if us == 0:
        return "Another replica of the model served all the time."
    if us < 0:
        return "No replica of the model was ready again by the end of what was looked at."
    return f"After {duration(us)} a replica of the model was ready again."


def _for(us: int) -> str:
    return duration(us) if us else "at once"


def step(row: Row) -> Row:
    """Something that happened because of it, in words where it is a decision."""
    what = row["what"]
    said = dict(what)
    if row["type"] == "RequestDispatched":
        said["why"] = what.get("rule", "least_busy")
    elif row["type"] == "SwapBegun":
        said["model"] = what.get("target", "")
    elif row["type"] == "SwapFinished":
        said["why"] = "ok" if what.get("ok", True) else "failed"
    elif row["type"] == "AdminDone":
        said["why"] = what.get("outcome")
    elif row["type"] == "RequestRequeued":
        said["why"] = what.get("why", "upstream_lost")
    text = words.decision({"type": row["type"], **said}) if row["type"] in words.DECISIONS else _fact(row["type"], what)
    if what.get("rid") and f"equest {what['rid']}" not in text:
        text = f"Request {what['rid']}: {text[:1].lower()}{text[1:]}"
    return {"at_us": row["at_us"], "seq": row["seq"], "words": text}


def _fact(kind: str, what: Row) -> str:
    """Facts that follow a crash."""
    replica = what.get("replica", "it")
    match kind:
        case "ReplicaReady":
            return f"{replica} is ready, after {duration(what.get('load_us', 0))}."
        case "ReplicaCrashed":
            return f"{replica} has crashed: {words.of(words.EXIT_CAUSES, what.get('cause_of_exit', 'exit'))}."
        case "ReplicaLoadFailed":
            return f"{replica} did not become ready: {words.of(words.LOAD_FAILURES, what.get('kind'))}."
        case "ReplicaStopped":
            return f"{replica} is gone."
        case "ReplicaStalled":
            return f"{replica} makes no data for {duration(what.get('silent_us'))}."
        case "UpstreamLost":
            return f"The connection to {replica} broke."
        case "RequestFinished":
            return "It is answered."
        case "RequestCancelled":
            return f"It is cancelled: {words.of(words.CANCELLED_BY, what.get('by', 'client'))}."
    details = listed([f"{name} {value}" for name, value in what.items() if not isinstance(value, list | dict)], 6)
    return f"{kind}: {details}"
