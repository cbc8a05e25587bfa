"""Clients that leave, and reports that cross on the way or come late."""

import pytest

from eventlog import events as e
from tests.scheduler.scenario import Scenario

MODELS: dict[str, tuple[int, ...]] = {"A": (0,), "B": (0,)}


def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    digest = story.digest()
    story.arrives(10, "A")
    story.leaves(10)
    story.decides()
    story.state.last_rid = 9
    assert story.digest() == digest


def test_the_slot_of_a_client_that_is_gone_is_free_when_the_replica_has_let_go() -> None:
    """A real llama-server ends its batch first: only SlotReleased frees the slot."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.arrives(10, "A")
    story.leaves(9)
    story.decides()
    story.releases(9, "A")
    story.decides("dispatch 10 to A/0 (least_busy)")


def test_a_slot_is_released_once() -> None:
    story = Scenario(models=MODELS, slots=2)
    story.serving((9, "A"), (10, "A"))
    story.leaves(9)
    story.releases(9, "A")
    story.releases(9, "A")
    assert story.state.replicas[story.replica("A")].load == 1


def test_a_client_may_leave_while_its_model_loads() -> None:
    story = Scenario(models=MODELS)
    story.arrives(1, "A")
    story.leaves(1)
    story.untold()
    story.ready("A")
    story.decides("finished swap to A")


def test_a_client_that_leaves_between_a_crash_and_the_broken_connection_is_gone_all_the_same() -> None:
    """The model counts nobody in flight afterwards, or it could never be evicted again."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    replica = story.replica("A")
    story.happens(e.ReplicaCrashed(replica=replica))
    story.leaves(9)
    story.happens(e.SlotReleased(rid=9, replica=replica))
    assert story.state.models["A"].in_flight == 0
    story.loaded("A")
    story.arrives(10, "B")
    story.decides("swap to B (idle) evicting A", "stop A/0 (evict)")


def test_a_broken_connection_may_be_reported_after_the_replica_has_stopped() -> None:
    """The unload was forced: its request ends with that, not with a retry."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    replica = story.replica("A")
    story.unload(7, "A", force=True)
    story.untold()
    story.stopped("A")
    story.happens(e.UpstreamLost(rid=9, replica=replica))
    story.decides("finished unload", "done 7 (done)", "fail 9 (503 model_unloaded)")


def test_a_broken_connection_may_be_reported_after_the_crash() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    replica = story.replica("A")
    story.happens(e.ReplicaCrashed(replica=replica))
    story.decides()
    story.happens(e.UpstreamLost(rid=9, replica=replica))
    story.decides("requeue 9 (upstream_lost), attempt 2", "swap to A (idle)", "spawn A/0")


def test_a_report_of_readiness_that_crosses_with_an_order_to_stop_is_not_believed() -> None:
    story = Scenario(models=MODELS)
    story.wished(6, 1, "A")
    story.unload(7, "A", force=True)
    story.decides("swap to A (wish)", "spawn A/0", "done 6 (cancelled model_unloaded)", "stop A/0 (unload, force)")
    story.ready("A")
    story.decides()
    story.stopped("A")
    story.decides("failed swap to A", "done 7 (done)")
    assert story.phase("A") == "absent"


LATE = {
    "ready": e.ReplicaReady(replica="A#0.1", slots=4),
    "answered": e.ReplicaAnswered(replica="A#0.1"),
    "stalled": e.ReplicaStalled(replica="A#0.1", silent_us=1, norm_us=1),
    "spawned": e.ReplicaSpawned(replica="A#0.1", pid=1),
    "load failed": e.ReplicaLoadFailed(replica="A#0.1", kind="exit"),
    "stopped": e.ReplicaStopped(replica="A#0.1"),
    "crashed": e.ReplicaCrashed(replica="A#0.1"),
    "finished": e.RequestFinished(rid=9, replica="A#0.1"),
    "lost": e.UpstreamLost(rid=9, replica="A#0.1"),
    "lost there": e.UpstreamLost(rid=10, replica="A#0.1"),
    "finished there": e.RequestFinished(rid=10, replica="A#0.1"),
    "cancelled": e.RequestCancelled(rid=9, replica="A#0.1"),
    "released": e.SlotReleased(rid=9, replica="A#0.1"),
    "released there": e.SlotReleased(rid=10, replica="A#0.1"),
    "detached": e.ClientDetached(rid=9),
    "never heard of": e.RequestCancelled(rid=4711),
}


@pytest.mark.parametrize("fact", LATE.values(), ids=LATE)
def test_late_reports_about_what_is_gone_change_nothing(fact: e.Fact) -> None:
    """A's first process is gone, and so is request 9; its second serves request 10, and 11 waits."""
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    story.finishes(9)
    story.stopped("A")
    story.serving((10, "A"))
    story.arrives(11, "A")
    digest = story.digest()
    story.untold()
    story.happens(fact)
    story.decides(timers=True)
    assert story.digest() == digest


def test_observations_and_facts_that_nothing_depends_on_change_nothing() -> None:
    story = Scenario(models=MODELS)
    story.serving((9, "A"))
    digest = story.digest()
    story.happens(e.RequestSent(rid=9, replica=story.replica("A")))
    story.happens(e.SlotHolds(replica=story.replica("A"), slot=0, conversation="x"))
    story.happens(e.GpuMemorySettled(gpus=[0]))
    story.happens(e.ClientReattached(rid=9))
    story.decides(timers=True)
    assert story.digest() == digest
