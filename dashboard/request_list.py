"""The history of requests, page by page, the newest first."""

from dataclasses import dataclass
from typing import Any

from dashboard.history import History
from projections.errors import QuestionFailed
from projections.output import plain

TIME_LIMIT_S = 20.0
OUTCOMES = ("ok", "error", "failed", "rejected", "cancelled", "lost")
OPEN = "open"
"""Filter: those that have not ended."""
UNWELL = "not_ok"
"""Filter: errors of every kind."""
MANY = 20_000
PARTS = (256, 16)
"""Of so many requests, a page is first looked for in the last 256th of the range, then in the last 16th."""

_WHERE = """
arrived_us >= $since_us AND arrived_us < $until_us
    AND ($model = '' OR model = $model)
    AND ($client = '' OR client = $client OR key = $client)
    AND CASE $outcome
        WHEN '' THEN true
        WHEN 'open' THEN outcome IS NULL
        WHEN 'not_ok' THEN outcome IN ('error', 'failed', 'rejected', 'lost')
        ELSE outcome = $outcome
    END
"""

_COUNT = f"SELECT count(*) FROM requests WHERE {_WHERE}"

# First which, by few columns; then all of their columns, in a range of numbers that leaves out most of the table.
_PAGE = f"""
WITH chosen AS MATERIALIZED (
    SELECT rid FROM requests WHERE {_WHERE} ORDER BY arrived_us DESC, rid DESC LIMIT $limit OFFSET $offset
)
SELECT
    rid, arrived_us, model, asked, route, client, key, stage, priority, stream,
    wait_us, ttft_us, total_us, prompt_tokens, cached_tokens, completion_tokens, frames, tokens_per_s,
    outcome, status, code, reason, cancelled_by
FROM requests
WHERE rid IN (FROM chosen)
ORDER BY arrived_us DESC, rid DESC
"""

_CLIENTS = """
SELECT coalesce(nullif(key, ''), client) AS who, bool_or(key <> '') AS is_key, count(*) AS requests
FROM requests
WHERE arrived_us >= $since_us AND arrived_us < $until_us AND ($model = '' OR model = $model)
    AND (key <> '' OR client <> '')
GROUP BY who
ORDER BY requests DESC, who
LIMIT 50
"""


@dataclass(frozen=True)
class Wanted:
    """Which requests: a range of their arrival in microseconds, and filters, each empty for all."""

    since_us: int
    until_us: int
    model: str = ""
    client: str = ""
    """Fingerprint of a client, or name of a key."""
    outcome: str = ""
    """One of OUTCOMES, OPEN or UNWELL."""
    page: int = 1
    limit: int = 25


async def listed(history: History, wanted: Wanted) -> dict[str, Any]:
    """`rows` of this page; `total` over all pages. Raises QuestionFailed for a filter that cannot be."""
    known = ("", OPEN, UNWELL, *OUTCOMES)
    if wanted.outcome not in known:
        raise QuestionFailed(f"outcome {wanted.outcome!r} is none of {', '.join(known[1:])}")
    filters = {
        "since_us": wanted.since_us,
        "until_us": wanted.until_us,
        "model": wanted.model,
        "client": wanted.client,
        "outcome": wanted.outcome,
    }
    total = await _count(history, filters)
    place = {"limit": wanted.limit, "offset": (wanted.page - 1) * wanted.limit}
    since_us = await _since(history, wanted, filters, total)
    found = await history.ask(_PAGE, filters | {"since_us": since_us} | place, time_limit_s=TIME_LIMIT_S)
    rows = [{name: plain(value) for name, value in record.items()} for record in found.records()]
    return {"rows": rows, "total": total, "page": wanted.page, "limit": wanted.limit}


async def _since(history: History, wanted: Wanted, filters: dict[str, Any], total: int) -> int:
    """From when on the rows up to this page are: a late part of the range, where it has enough of them.

    The newest of a million are sorted out far more slowly than those of the last hours are counted.
    """
    enough = min(total, wanted.page * wanted.limit)
    for part in PARTS if total > MANY else ():
        since_us = wanted.until_us - (wanted.until_us - wanted.since_us) // part
        if await _count(history, filters | {"since_us": since_us}) >= enough:
            return since_us
    return wanted.since_us


async def _count(history: History, filters: dict[str, Any]) -> int:
    counted = await history.ask(_COUNT, filters, time_limit_s=TIME_LIMIT_S)
    number: int = counted.rows[0][0]
    return number


async def clients(history: History, since_us: int, until_us: int, model: str) -> list[dict[str, Any]]:
    """Who asked the most: `who` is the name of a key, or else a client's fingerprint."""
    filters = {"since_us": since_us, "until_us": until_us, "model": model}
    found = await history.ask(_CLIENTS, filters, time_limit_s=TIME_LIMIT_S)
    return found.records()
