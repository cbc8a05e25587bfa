"""Ask the dashboard's process, which has the database open, over its UNIX socket. Counterpart: `dashboard.app`."""

import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from projections.errors import ProjectionError, QuestionFailed
from projections.sandbox import Answer

CONNECT_S = 2.0
GRACE_S = 5.0
"""Beyond the time of the question itself."""


class NotServed(ProjectionError):
    """No dashboard listens there."""


def ask_served(
    path: Path, sql: str, parameters: Mapping[str, Any], *, time_limit_s: float, max_rows: int | None = None
) -> Answer:
    """As `sandbox.ask`. Raises NotServed where nobody answers, and QuestionFailed."""
    connection = http.client.HTTPConnection("localhost", timeout=time_limit_s + GRACE_S)
    connection.sock = _connected(path)
    connection.sock.settimeout(time_limit_s + GRACE_S)
    asked = {"sql": sql, "parameters": dict(parameters), "timeout_s": time_limit_s, "max_rows": max_rows or 0}
    try:
        connection.request("POST", "/api/sql", json.dumps(asked), {"content-type": "application/json"})
        response = connection.getresponse()
        told = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NotServed(f"the dashboard at {path} does not answer: {error}") from error
    finally:
        connection.close()
    if response.status == 503:
        raise NotServed(f"the dashboard at {path} is not ready: {told['error']['message']}")
    if response.status != 200:
        raise QuestionFailed(told["error"]["message"])
    rows = [tuple(row) for row in told["rows"]]
    return Answer(tuple(told["columns"]), tuple(told["types"]), rows, told["more"])


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(CONNECT_S)
    try:
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise NotServed(f"no dashboard listens at {path}: {error.strerror}") from error
    return sock
