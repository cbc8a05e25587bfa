"""What `llama-router status` and `models` print: the JSON of `/status` and `/models` as text. Pure."""

from typing import Any

from router.text_table import aligned

QUEUE_SHOWN = 20


def render_status(status: dict[str, Any], url: str) -> str:
    """Who was asked; GPUs, models that are up or wanted, what runs and what waits for what."""
    parts = [
        f"llama-router {status['version']}, {status['status']} at {url}, up {_time(status['uptime_us'])}, "
        f"process {status['pid']}, run {status['run']}, event {status['seq']}"
        + ("" if status["log_available"] else ", LOG NOT WRITABLE"),
        _gpus(status["gpus"]),
        _models(status["models"]),
    ]
    if status["prompt_caches"]["on"]:
        parts.append(_caches(status["prompt_caches"]))
    if status["swaps"]:
        parts.append(_swaps(status["swaps"]))
    if status["in_flight"]:
        parts.append(_running(status["in_flight"]))
    if status["queue"]:
        parts.append(_queue(status["queue"], status["queued"]))
    if words := _words(status):
        parts.append("\n".join(words))
    return "\n\n".join(parts)


def _words(status: dict[str, Any]) -> list[str]:
    """What the owner should know, and the profile in force."""
    words = [f"profile: {status['profile']}"] if status.get("profile") else []
    words += [f"warning: {text}" for text in status.get("warnings") or ()]
    if (status.get("config") or {}).get("problems"):
        problems = "\n".join(status["config"]["problems"]).replace("\n", "\n  ")
        words.append(f"the last reload was refused, the configuration before it is in force:\n  {problems}")
    return words


def render_models(listing: dict[str, Any]) -> str:
    """One line per model: its name, whether it is loaded, its context."""
    rows = [("MODEL", "STATUS", "CONTEXT", "ALIASES")]
    for model in listing["data"]:
        meta = model.get("meta") or {}
        rows.append(
            (
                model["id"],
                model["status"]["value"],
                str(meta.get("n_ctx") or ""),
                ", ".join(model.get("aliases") or ()),
            )
        )
    return aligned(rows)


def _gpus(gpus: list[dict[str, Any]]) -> str:
    rows = [("GPU", "STATUS", "LOADED", "MEMORY", "USE")]
    for gpu in gpus:
        residents = [f"{resident['model']} ({_state(resident['phase'])})" for resident in gpu["residents"]]
        memory = "" if gpu["used_mib"] is None else f"{gpu['used_mib']}/{gpu['total_mib']} MiB"
        use = "" if gpu["utilisation_percent"] is None else f"{gpu['utilisation_percent']} %"
        status = "out of service" if gpu["out_of_service"] else gpu["status"]
        rows.append((f"{gpu['index']} {gpu['name']}".strip(), status, ", ".join(residents) or "-", memory, use))
    return aligned(rows)


def _models(models: list[dict[str, Any]]) -> str:
    rows = [("MODEL", "STATE", "GPUS", "REPLICAS", "SLOTS", "RUNNING", "QUEUED", "IDLE")]
    for model in models:
        rows.append(
            (
                model["name"],
                _state(model["phase"]),
                ",".join(map(str, model["gpus"])) or "cpu",
                str(model["replicas"]),
                str(model["slots"]),
                str(model["in_flight"]),
                str(model["queued"]),
                "" if model["idle_us"] is None else _time(model["idle_us"]),
            )
        )
    return aligned(rows)


def _state(phase: str) -> str:
    """As `llama-router models` and the pages call it."""
    return {"ready": "loaded", "absent": "unloaded"}.get(phase, phase)


def _caches(caches: dict[str, Any]) -> str:
    text = (
        f"prompt caches kept: {caches['files']}, {caches['bytes'] >> 20} of {caches['budget_bytes'] >> 20} MiB; "
        f"{caches['hits']} found again, {_time(caches['saved_us'])} of prefill saved"
    )
    given_up = ", ".join(f"{model} ({why})" for model, why in caches["given_up"].items())
    return f"{text}; given up: {given_up}" if given_up else text


def _swaps(swaps: list[dict[str, Any]]) -> str:
    rows = [("SWAP", "TO", "EVICTS", "PHASE", "WHY", "SINCE")]
    for swap in swaps:
        victims = ", ".join(swap["victims"]) or "-"
        rows.append(
            (str(swap["swap"]), swap["target"] or "-", victims, swap["phase"], swap["why"], _time(swap["since_us"]))
        )
    return aligned(rows)


def _running(requests: list[dict[str, Any]]) -> str:
    rows = [("RUNNING", "MODEL", "ROUTE", "WAITED", "SINCE")]
    for request in requests:
        rows.append(
            (
                str(request["rid"]),
                request["model"],
                request.get("route", ""),
                _time(request.get("waited_us", 0)),
                _time(request.get("running_us", 0)),
            )
        )
    return aligned(rows)


def _queue(queue: list[dict[str, Any]], length: int) -> str:
    rows = [("WAITING", "REQUEST", "MODEL", "WAITED", "FOR", "ETA")]
    for wait in queue[:QUEUE_SHOWN]:
        blocked = wait["blocked_by"]
        what = " ".join(filter(None, (blocked["why"], ", ".join(map(str, blocked["by"] or ())))))
        eta = "" if wait["eta_us"] is None else _time(wait["eta_us"])
        rows.append((str(wait["position"]), str(wait["rid"]), wait["model"], _time(wait["waited_us"]), what, eta))
    more = f"\n... and {length - QUEUE_SHOWN} more" if length > QUEUE_SHOWN else ""
    return aligned(rows) + more


def _time(us: int) -> str:
    seconds = us / 1e6
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
