"""Tokenize, count, apply a template: they need the model, but no slot, and they hold nobody up for long."""

from eventlog import events as e
from tests.scheduler.scenario import Scenario

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,)}


def test_metadata_takes_no_slot() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A", work="metadata", slots_wanted=8)
    story.decides("dispatch 10 to A/0 (least_busy)")
    assert story.last(e.RequestDispatched).weight == 0


def test_metadata_loads_its_model_in_its_turn() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A", work="metadata")
    story.decides("swap to A (idle)", "spawn A/0")


def test_a_model_that_is_to_leave_gives_its_metadata_five_seconds() -> None:
    """Otherwise two models on one GPU could evict each other for ever, each time before the answer."""
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "A", work="metadata")
    story.untold()
    story.arrives(11, "B")
    story.decides("swap to B (idle) evicting A", "set drain:2 to 5 s", timers=True)
    story.finishes(10)
    story.decides("stop A/0 (evict)", "cancel drain:2", timers=True)


def test_metadata_does_not_hold_up_an_eviction_for_longer() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "A", work="metadata")
    story.arrives(11, "B")
    story.untold()
    story.at(4.9)
    story.decides()
    story.at(5)
    story.decides("stop A/0 (evict)")
    story.loses(10)
    story.decides("requeue 10 (replica_gone), attempt 1", "hold 10 (swapping, hard) for B")


def test_a_replica_that_leaves_twice_under_the_same_request_is_enough() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "A", work="metadata")
    for rid in (11, 12):
        story.arrives(rid, "B")
        story.after(5)
        story.loses(10)
        if 10 in story.outcomes:
            break
        story.stopped("A")
        story.ready("B")
        story.finishes(rid)
        story.stopped("B")
        story.ready("A")
    assert story.outcomes[10] == "503 model_unloaded"


def test_when_the_router_unloads_by_force_metadata_is_cut_as_well() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "A", work="metadata")
    story.unload(7, "A", force=True)
    story.decides("dispatch 10 to A/0 (least_busy)", "unload A (unload)", "stop A/0 (unload, force)")
    story.loses(10)
    story.decides("fail 10 (503 model_unloaded)")


def test_a_crash_under_metadata_is_a_crash() -> None:
    story = Scenario(models=MODELS)
    story.loaded("A")
    story.arrives(10, "A", work="metadata")
    story.untold()
    story.crashes("A")
    story.decides("requeue 10 (upstream_lost), attempt 2", "swap to A (idle)", "spawn A/0")
