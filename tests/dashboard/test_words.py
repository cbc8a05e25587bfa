"""Every reason, rule and code that the log knows is said in words: one that is added without them is found here."""

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest

from dashboard import words
from eventlog import events as e
from replay.explain_text import PASSING
from replay.waits import MEANING
from router.errors import CODES


def options(kind: type[e.Event], field: str) -> set[str]:
    """The words that a field may hold."""
    return set(get_args(get_type_hints(kind)[field]))


VOCABULARY = [
    (words.HELD, options(e.RequestHeld, "why")),
    (words.RULES, options(e.RequestDispatched, "rule")),
    (words.REQUEUED, options(e.RequestRequeued, "why")),
    (words.CANCELLED_BY, options(e.RequestCancelled, "by")),
    (words.SWAP_WHY, options(e.SwapBegun, "why")),
    (words.ABORTED, options(e.SwapAborted, "why")),
    (words.GIVEN_UP, options(e.CacheGivenUp, "why")),
    (words.STOP_WHY, options(e.ReplicaStopOrdered, "why")),
    (words.LOAD_FAILURES, options(e.ReplicaLoadFailed, "kind")),
    (words.EXIT_CAUSES, options(e.ReplicaCrashed, "cause_of_exit")),
    (words.OPERATIONS, options(e.AdminDone, "outcome")),
    (words.WISHED_BY, options(e.LoadWished, "by")),
    (words.TIMERS, options(e.TimerSet, "kind")),
    (words.ERROR_CODES, set(CODES)),
    (words.DECISIONS, {kind.__name__ for kind in e.DECISIONS}),
]


@pytest.mark.parametrize(("said", "known"), VOCABULARY)
def test_every_word_of_the_log_is_said_in_plain_words(said: Mapping[str, Any], known: set[str]) -> None:
    assert known, "the vocabulary was not found"
    assert known <= set(said)


def test_a_held_request_says_whom_it_waits_for() -> None:
    row = {"type": "RequestHeld", "why": "claimed", "blocked_by": ["rid:7"], "victims": ["small"], "hard": True}

    said = words.decision(row)

    assert said == (
        "An earlier request comes first on the GPUs that it needs: request 7. To be loaded, it needs small to leave. "
        "Its turn has come: no later request may start on what must leave."
    )


@pytest.mark.parametrize("why", sorted(words.HELD))
def test_each_reason_to_be_held_makes_a_whole_sentence(why: str) -> None:
    said = words.decision({"type": "RequestHeld", "why": why, "blocked_by": ["big", "rid:3"]})

    assert said.endswith(".")
    assert "{" not in said
    assert "_" not in said


@pytest.mark.parametrize("kind", sorted(words.DECISIONS))
def test_a_decision_of_which_nothing_but_its_type_is_known_is_still_said(kind: str) -> None:
    """A row of a table may be empty in every column that its type does not have."""
    assert words.decision({"type": kind}).endswith(".")


def test_what_a_newer_router_wrote_is_shown_as_it_is() -> None:
    assert words.of(words.RULES, "by_moonlight") == "by moonlight"
    assert words.decision({"type": "MoonRisen"}) == "MoonRisen"


@pytest.mark.parametrize(
    ("request_row", "said"),
    [
        ({"outcome": None, "stage": "queued"}, "Waiting in the queue."),
        ({"outcome": None, "stage": "running", "replica": "a#1"}, "Running on a#1."),
        ({"outcome": "ok", "finish_reason": "length"}, "Answered: it reached the limit of tokens."),
        ({"outcome": "ok", "finish_reason": ""}, "Answered."),
        ({"outcome": "cancelled", "cancelled_by": "client"}, "Cancelled: the client closed the connection."),
        (
            {"outcome": "cancelled", "cancelled_by": "client", "unread_frames": 2},
            "Cancelled: the client closed the connection; 2 tokens had been made that nobody read.",
        ),
        (
            {"outcome": "failed", "code": "upstream_crashed", "begun": True},
            "Ended by the router with an error: the llama-server that worked on it died; a part of the answer had "
            "reached the client.",
        ),
        ({"outcome": "rejected", "code": "queue_full"}, "Refused on arrival: the queue was full."),
        ({"outcome": "error", "status": 400}, "llama-server answered with an error: status 400."),
        ({"outcome": "lost"}, "Lost: the router itself ended before the request did."),
    ],
)
def test_what_became_of_a_request_is_said_in_a_sentence(request_row: dict[str, Any], said: str) -> None:
    assert words.outcome(request_row)[1:] == said[1:]


def test_a_swap_says_why_it_began_just_then() -> None:
    swap = {
        "why": "grace_over",
        "cause_rid": 12,
        "waited_us": 31_000_000,
        "head_since_us": 1_000_000,
        "begun_us": 31_000_000,
    }

    turn = "The turn of the request at the head of the queue had come, although what had to leave was in use or wanted"
    cause = "It is for request 12, which had waited 31 s, 30 s of that at the head of the queue."
    assert words.swap_why(swap, [{"model": "small"}]) == f"{turn}. {cause}"
    settings = {"head_grace_us": 30_000_000, "head_grace_from": "head", "head_release": "grace"}
    for changed, said in (
        ({}, "its grace of 30 s (QUEUE_HEAD_GRACE), since it was the first that waited, was over"),
        ({"head_grace_from": "arrival"}, "its grace of 30 s (QUEUE_HEAD_GRACE), since it arrived, was over"),
        ({"head_grace_us": 0}, "it has no grace (QUEUE_HEAD_GRACE is 0)"),
        (
            {"head_release": "accrued"},
            "the requests for its model had waited long enough together (QUEUE_HEAD_RELEASE is accrued; at most 30 s)",
        ),
    ):
        assert words.swap_why(swap | settings | changed, [{"model": "small"}]) == f"{turn}: {said}. {cause}"
    assert words.swap_why({"why": "forced", "force_load_us": 300_000_000}, []) == (
        "Its request had waited the longest that a request may, 5 min (QUEUE_FORCE_LOAD_TIMEOUT), "
        "so it came before everything else."
    )
    assert words.swap_why({"why": "idle"}, []) == "There was room for it, so it began at once."


def test_a_crash_says_how_and_after_how_long() -> None:
    assert words.crash({"kind": "crash", "cause": "signal", "signal": 11, "lived_us": 90_000_000}) == (
        "A signal ended the process (signal 11) after 90 s."
    )
    assert words.crash({"kind": "load_failed", "cause": "missing_file", "exit_code": 1, "lived_us": 80_000}) == (
        "While it was being loaded, its model file is not there (exit code 1) after 80 ms."
    )
    assert words.crash({"kind": "stall", "rids": [3], "silent_us": 40_000_000, "norm_us": 200_000}) == (
        "It worked on 1 request and made no data for 40 s; usual is 200 ms."
    )


def test_the_pages_and_replay_explain_say_the_same_of_a_wait() -> None:
    """In the same words, so that whoever has read one knows the other."""
    assert {name: MEANING[name] for name in words.WAITED_FOR} == words.WAITED_FOR  # type: ignore[index]
    assert words.PASSING == PASSING
