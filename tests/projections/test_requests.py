"""What a row of `requests` says, told from the log."""

from pathlib import Path

import pytest

from eventlog import events as e
from eventlog.events import SlotTiming
from tests.projections.logs import Row, Story, arrives, ask, project, started, us

S = 1_000_000


def rows(folder: Path) -> list[Row]:
    with project(folder / "log", folder / "db") as projector:
        return ask(projector, "FROM requests ORDER BY rid")


def test_a_request_that_waits_for_a_load_says_how_long_it_queued_and_how_long_the_load_took_of_it(
    tmp_path: Path,
) -> None:
    """It arrives at 1 s; the swap begins at 4 s, when the GPU is free of others; the model is ready at 9 s."""
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"))
        story.at(1, arrives(1, "A", 1, key="alice", client="c", conversation="d", body_bytes=70))
        story.at(4, e.SwapBegun(swap=1, target="A", cause_rid=1, why="idle", footprint=(0,)))
        story.at(4, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,), swap=1))
        story.at(9, e.ReplicaReady(replica="A#0.1", slots=2, load_us=5 * S))
        story.at(9, e.RequestDispatched(rid=1, replica="A#0.1", waited_us=8 * S, rule="pay_out"))
        story.at(
            12,
            e.RequestFinished(
                rid=1,
                replica="A#0.1",
                first_token_us=S,
                took_us=3 * S,
                frames=21,
                finish_reason="stop",
                prompt_tokens=1000,
                cached_tokens=900,
                completion_tokens=21,
                timing=SlotTiming(cache_n=900, prompt_n=100, prompt_us=S // 2, predicted_n=20, predicted_us=2 * S),
            ),
        )

    [row] = rows(tmp_path)

    assert (row["arrived_us"], row["dispatched_us"], row["ended_us"]) == (us(1), us(9), us(12))
    assert (row["wait_us"], row["load_wait_us"], row["swap"]) == (8 * S, 5 * S, 1)
    assert (row["first_token_us"], row["ttft_us"], row["took_us"], row["total_us"]) == (S, 9 * S, 3 * S, 11 * S)
    assert (row["prompt_tokens"], row["cached_tokens"], row["uncached_tokens"]) == (1000, 900, 100)
    assert (row["prompt_tokens_per_s"], row["tokens_per_s"]) == (200.0, 10.0)
    assert (row["outcome"], row["status"], row["stage"], row["attempts"]) == ("ok", 200, "ended", 1)
    assert (row["key"], row["client"], row["conversation"], row["body_bytes"]) == ("alice", "c", "d", 70)


def test_an_answer_without_timings_is_as_fast_as_its_tokens_came_after_the_first(tmp_path: Path) -> None:
    """As those of /v1/messages: 21 tokens, of which the first came after 1 s and the last after 3 s."""
    with Story(tmp_path / "log") as story:
        story.at(0, arrives(1, "A", 0, stream=True), e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(3, e.RequestFinished(rid=1, replica="A#0.1", first_token_us=S, took_us=3 * S, completion_tokens=21))

    [row] = rows(tmp_path)

    assert (row["tokens_per_s"], row["prompt_tokens_per_s"]) == (10.0, None)


def test_a_request_that_finds_its_model_loaded_waits_for_no_load(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, e.ReplicaSpawnOrdered(replica="A#0.1", model="A", index=0, gpus=(0,)))
        story.at(2, e.ReplicaReady(replica="A#0.1", slots=2))
        story.at(5, arrives(1, "A", 5))
        story.at(6, e.RequestDispatched(rid=1, replica="A#0.1"))

    [row] = rows(tmp_path)

    assert (row["wait_us"], row["load_wait_us"], row["swap"]) == (S, 0, None)
    assert (row["stage"], row["outcome"], row["ended_us"], row["total_us"]) == ("running", None, None, None)


def test_every_way_to_end_is_told_apart(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(0, started("A"))
        for rid in range(1, 8):
            story.at(rid, arrives(rid, "A", rid))
        story.at(10, e.RequestDispatched(rid=1, replica="A#0.1"), e.RequestDispatched(rid=2, replica="A#0.1"))
        story.at(11, e.RequestFinished(rid=1, replica="A#0.1"))
        story.at(12, e.RequestFinished(rid=2, replica="A#0.1", status=400, error="context is too small"))
        story.at(13, e.RequestCancelled(rid=3, by="admin"))
        story.at(14, e.RequestFailed(rid=4, status=502, code="model_load_failed", reason="no such file"))
        story.at(15, e.RequestRejected(rid=5, status=429, code="queue_full"))
        story.at(16, e.AdminDrain(op=1))
    with Story(tmp_path / "log", run=2) as story:
        story.at(90, started("A"), e.RequestLost(rid=6, model="A", lost_run=1))

    found = rows(tmp_path)

    assert [row["outcome"] for row in found] == ["ok", "error", "cancelled", "failed", "rejected", "lost", None]
    assert [row["status"] for row in found[:5]] == [200, 400, None, 502, 429]
    assert [row["reason"] for row in found[1:4]] == ["context is too small", None, "no such file"]
    assert found[2]["cancelled_by"] == "admin"
    assert found[4]["wait_us"] is None, "it was never dispatched"
    assert found[5]["ended_us"] == us(16), "a lost request ended with its run, not when the next one began"


def test_a_retried_request_counts_its_attempts_and_tells_of_the_last(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1))
        story.at(2, e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(3, e.UpstreamLost(rid=1, replica="A#0.1"), e.RequestRequeued(rid=1, replica="A#0.1", attempt=1))
        story.at(5, e.RequestDispatched(rid=1, replica="A#0.2", attempt=2, rule="alone"))
        story.at(6, e.RequestFinished(rid=1, replica="A#0.2", took_us=S))

    [row] = rows(tmp_path)

    assert (row["attempts"], row["replica"], row["rule"], row["wait_us"]) == (2, "A#0.2", "alone", 4 * S)


def test_tokens_for_a_client_that_had_left_are_counted(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1))
        story.at(2, e.RequestDispatched(rid=1, replica="A#0.1"))
        story.at(3, e.RequestCancelled(rid=1, replica="A#0.1", frames=30, unread_frames=4))
        story.at(4, e.SlotReleased(rid=1, replica="A#0.1", took_us=S))

    with project(tmp_path / "log", tmp_path / "db") as projector:
        [row] = ask(
            projector, "SELECT outcome, frames, unread_frames, releases.took_us FROM requests JOIN releases USING (rid)"
        )

    assert row == {"outcome": "cancelled", "frames": 30, "unread_frames": 4, "took_us": S}


def test_the_cost_is_that_of_the_configuration_in_force_when_it_ended(tmp_path: Path) -> None:
    """Dollars per million tokens; a reload doubles them between two requests."""

    def priced(factor: int) -> dict[str, object]:
        cost = {"input": 2.0 * factor, "cached_input": 1.0 * factor, "output": 10.0 * factor}
        return {"models": {"A": {"cost": cost}, "B": {"cost": None}}}

    end = {"replica": "x", "prompt_tokens": 1000, "cached_tokens": 600, "completion_tokens": 50}
    start = started("A", "B", effective=priced(1))
    with Story(tmp_path / "log") as story:
        story.at(0, start)
        for rid, model in ((1, "A"), (2, "A"), (3, "B")):
            story.at(1, arrives(rid, model, 1))
        story.at(2, e.RequestFinished(rid=1, **end))  # type: ignore[arg-type]
        story.at(3, e.ConfigLoaded(config=start.config, effective=priced(2)))
        story.at(4, e.RequestFinished(rid=2, **end), e.RequestFinished(rid=3, **end))  # type: ignore[arg-type]

    first, second, free = rows(tmp_path)

    assert first["cost"] == pytest.approx((400 * 2 + 600 * 1 + 50 * 10) / 1e6)
    assert second["cost"] == pytest.approx(2 * first["cost"])
    assert free["cost"] is None


def test_words_of_clients_and_models_are_kept_as_they_are(tmp_path: Path) -> None:
    name = 'Q\'wen "3"; DROP TABLE requests; -- \n<b>\u2028\U0001f600 \\'
    with Story(tmp_path / "log") as story:
        story.at(0, started(name, effective={"models": {name: {"cost": {"input": 1, "cached_input": 1, "output": 1}}}}))
        story.at(1, arrives(1, name, 1, key=name, asked=name))
        story.at(2, e.RequestFinished(rid=1, replica=name + "#0.1", prompt_tokens=7, error=name))

    [row] = rows(tmp_path)

    assert (row["model"], row["key"], row["asked"], row["reason"]) == (name, name, name, name)
    assert row["cost"] == pytest.approx(7e-6)


def test_a_request_tells_what_became_of_its_model_s_name_and_of_its_parameters(tmp_path: Path) -> None:
    with Story(tmp_path / "log") as story:
        story.at(1, arrives(1, "A", 1, asked="best", via="selector best", rewrote=["temperature", "seed"]))
        story.at(2, arrives(2, "A", 2))

    first, second = rows(tmp_path)

    assert (first["asked"], first["via"], first["rewrote"]) == ("best", "selector best", ["temperature", "seed"])
    assert (second["asked"], second["via"], second["rewrote"]) == ("", "", [])


def test_the_speed_of_an_answer_is_not_guessed_where_nobody_told_it(tmp_path: Path) -> None:
    """Without llama-server's own account, only a stream shows how long its tokens took: first a stream, then one of one
    token, then an answer in one piece."""
    end = {"replica": "A#0.1", "took_us": 6 * S}
    with Story(tmp_path / "log") as story:
        for rid, is_stream in ((1, True), (2, True), (3, False)):
            story.at(1, arrives(rid, "A", 1, stream=is_stream), e.RequestDispatched(rid=rid, replica="A#0.1"))
        story.at(7, e.RequestFinished(rid=1, first_token_us=S, completion_tokens=51, **end))  # type: ignore[arg-type]
        story.at(7, e.RequestFinished(rid=2, first_token_us=S, completion_tokens=0, **end))  # type: ignore[arg-type]
        story.at(7, e.RequestFinished(rid=3, first_token_us=6 * S - 100, completion_tokens=51, **end))  # type: ignore[arg-type]

    assert [row["tokens_per_s"] for row in rows(tmp_path)] == [10, None, None]
