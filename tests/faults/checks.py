"""What must be true at the end of every run, and the block in which a run lives."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import Ledger, Line

OUTCOMES = ("RequestFinished", "RequestFailed", "RequestRejected", "RequestCancelled", "RequestLost")


@contextmanager
def routed(folder: Path, models: Sequence[Model], **settings: Any) -> Iterator[RouterProcess]:
    """A router on stand-ins; afterwards no child is left, every request has one outcome and no rule was broken."""
    with RouterProcess(folder, models, **settings) as router:
        yield router
    every_request_has_one_outcome(router)
    it_found_no_fault_with_itself(router)
    nobody_is_sent_to_a_stopping_server(router.ledger)
    slots_are_never_exceeded(
        router.ledger, {str(model.file(folder)): int(model.preset["parallel"]) for model in models}
    )


def every_request_has_one_outcome(router: RouterProcess) -> None:
    arrived = Counter(event["rid"] for event in router.events("RequestArrived"))
    ended = Counter(event["rid"] for event in router.events(*OUTCOMES))
    assert arrived == ended, f"arrived and ended differ: {arrived - ended} / {ended - arrived}"


def it_found_no_fault_with_itself(router: RouterProcess) -> None:
    """Whatever others did, the router has no error of its own to report."""
    said = router.stderr.read_text().splitlines()
    own = [line for line in said if " ERROR " in line or line.startswith("Traceback")]
    assert not own, "\n".join(own)


def nobody_is_sent_to_a_stopping_server(ledger: Ledger) -> None:
    """From SIGTERM on, a server gets no new generation."""
    stopping: dict[int, int] = {}
    for line in ledger.lines():
        if line["event"] == "sigterm":
            stopping.setdefault(line["pid"], line["mono_us"])
        assert line["event"] != "request_start" or line["pid"] not in stopping, f"sent to a stopping server: {line}"


def slots_are_never_exceeded(ledger: Ledger, slots: dict[str, int]) -> None:
    """No server ever has more generations than slots: the rest waits in the router, where the order is ours."""
    open_: dict[int, set[int]] = {}
    for line in ledger.lines():
        inside = open_.setdefault(line["pid"], set())
        if line["event"] == "request_start":
            inside.add(line["n"])
            assert len(inside) <= slots.get(line["model"], 1_000_000), f"more generations than slots: {line}"
        elif line["event"] in ("slot_freed", "disconnect_seen", "request_end"):
            inside.discard(line["n"])


def served_by(router: RouterProcess) -> dict[int, int]:
    """How many generations each process answered to their end."""
    return dict(Counter(line["pid"] for line in router.ledger.events("request_end")))


def processes_of(router: RouterProcess, model: str) -> list[Line]:
    """The `started` lines of a model's processes, in order."""
    return [line for line in router.ledger.events("started") if line["model"].endswith(f"/{model}.gguf")]
