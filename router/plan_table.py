"""What `llama-router check --plan` says: for each model, who would leave so that it can be loaded, from which states.

Counterpart: `router.outlook`, which asks the scheduler.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from eventlog.settings import SchedulerSettings
from router.outlook import Load, outlook
from router.text_table import aligned

MANY = "; there are more states than were looked at"


def told(settings: SchedulerSettings) -> str:
    """The engine and its rules, in a few words."""
    scope = " where they share a GPU" if settings.scope == "gpu" else ""
    if settings.engine == "group":
        return f"group: {', '.join(settings.groups) or 'one model at a time'}{scope}"
    if settings.engine == "matrix":
        count = sum(len(each.combinations) for each in settings.matrix)
        return f"matrix: {count} combinations in {len(settings.matrix)} sets{scope}"
    if settings.engine == "capacity":
        return f"capacity: {', '.join(f'{pool} {limit}' for pool, limit in settings.pools.items())}"
    return f"residency: {settings.max_models_per_gpu} per GPU"


def planned(settings: SchedulerSettings) -> dict[str, Any]:
    """For scripts: every load that was tried."""
    found = outlook(settings)
    return {
        "engine": settings.engine,
        "complete": found.complete,
        "states": [list(state) for state in found.states],
        "loads": [asdict(load) for load in found.loads],
    }


def plan_lines(settings: SchedulerSettings) -> Iterable[str]:
    """For people: each different outcome once, with a state that leads to it."""
    found = outlook(settings)
    yield ""
    yield f"who leaves ({told(settings)}), where nothing else fits beside what is loaded and all are idle:"
    rows = [("TO LOAD", "EVICTS", "WHEN LOADED", "")]
    for name in settings.models:
        alike: dict[tuple[str, ...], list[Load]] = {}
        for load in found.loads:
            if load.model == name:
                alike.setdefault((*sorted(load.evicts), load.never), []).append(load)
        if not alike:
            rows.append((name, "nobody", "whatever is loaded", ""))
        for loads in alike.values():
            first = min(loads, key=lambda load: len(load.beside))
            evicts = f"cannot be loaded: {first.never}" if first.never else ", ".join(sorted(first.evicts)) or "nobody"
            others = f"and {len(loads) - 1} more" if len(loads) > 1 else ""
            rows.append((name, evicts, ", ".join(first.beside) or "nothing", others))
    yield aligned(rows)
    yield f"{len(found.states)} states{'' if found.complete else MANY}"
