"""Two policies, off by default: who is worth least leaves; a head is released when waiting has paid for its swap."""

from typing import Any

import pytest

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from router.scheduler import digest
from router.scheduler.state import Model
from router.scheduler.worth import HALF_LIFE_US, USE, count_use, uses_at
from tests.scheduler import test_world
from tests.scheduler.scenario import Scenario


def test_uses_are_halved_every_half_life_and_decay_in_between() -> None:
    model = Model(name="A", mask=1)
    for _ in range(4):
        count_use(model, 5_000)
    halves = [uses_at(model, 5_000 + n * HALF_LIFE_US // 2) / USE for n in range(5)]
    assert halves == [4.0, 3.0, 2.0, 1.5, 1.0]


def loads_of(story: Scenario, **seconds: float) -> None:
    """Each model is loaded in so many seconds, and stays."""
    for model, load_s in seconds.items():
        op, rid = story.state.last_op + 1, story.state.last_rid + 1
        story.wished(op, rid, model)
        story.after(load_s)
        story.ready(model)
    story.untold()


def serve(story: Scenario, rid: int, model: str) -> None:
    story.arrives(rid, model)
    story.finishes(rid)
    story.untold()


def test_what_is_used_often_or_loads_slowly_stays() -> None:
    """B was used last, but once, and is back in 2 s; A was used once as well and takes 20 s: lru would have sent A."""
    for eviction, leaves in (("lru", "A"), ("worth", "B")):
        story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2, eviction=eviction)
        loads_of(story, A=20, B=2)
        serve(story, 10, "A")
        serve(story, 11, "B")
        story.arrives(12, "C")
        began = story.last(e.SwapBegun)
        assert [victim.model for victim in began.victims] == [leaves]
        assert (began.victims[0].worth > 0) == (eviction == "worth")


def test_a_model_that_was_popular_long_ago_is_worth_little() -> None:
    """Ten uses an hour ago count less than one now."""
    story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, cap=2, eviction="worth")
    loads_of(story, A=5, B=5)
    for rid in range(10, 20):
        serve(story, rid, "A")
    story.after(3600)
    serve(story, 20, "B")
    story.arrives(21, "C")
    assert [victim.model for victim in story.last(e.SwapBegun).victims] == ["A"]


def contested(**settings: Any) -> Scenario:
    """A serves 10; B, which loads in 6 s, is wanted by 11; behind it, 12 and 13 wait for A."""
    story = Scenario(models={"A": (0,), "B": (0,)}, head_release="accrued", **settings)
    loads_of(story, B=6)
    story.wished(50, 9, "A")
    story.stopped("B")
    story.after(6)
    story.ready("A")
    story.arrive({10: "A", 11: "B", 12: "A", 13: "A"})
    story.untold()
    return story


def test_a_head_is_released_when_its_waiting_has_paid_for_the_swap() -> None:
    """The price: 6 s for itself and 6 s for each of two that wait for A. Alone it takes 18 s to pay that."""
    story = contested()
    story.after(17.9)
    story.decides()
    story.after(0.1)
    story.decides("swap to B (grace_over) evicting A", "hold 12 (swapping) for B")


def test_more_who_wait_pay_faster() -> None:
    """From 6 s on, 14 and 15 pay as well: 6 + 3 x 4 = 18 s of waiting at 10 s."""
    story = contested()
    story.after(6)
    story.arrive({14: "B", 15: "B"})
    story.untold()
    story.after(3.9)
    story.decides()
    story.after(0.1)
    story.decides("swap to B (grace_over) evicting A", "hold 12 (swapping) for B")


def test_waiting_behind_another_head_pays_nothing_unless_it_counts_from_arrival() -> None:
    """C is the head, for 12 s; from then on it is B. Under backlog every request is old, and none would be patient."""
    for clock, accrued_s in (("head", 0), ("arrival", 12)):
        story = Scenario(models={"A": (0,), "B": (0,), "C": (0,)}, head_release="accrued", head_grace_from=clock)
        loads_of(story, A=6)
        story.arrive({10: "A", 11: "C", 12: "B", 13: "A"})
        story.after(12)
        assert story.loads()[-1] == "C"
        lane = story.state.lanes["B"]
        assert lane.length * story.now_us - lane.waits_from_us == accrued_s * 1_000_000


def test_who_leaves_the_queue_takes_its_waiting_along() -> None:
    story = contested()
    story.arrives(14, "B")
    story.leaves(14)
    story.untold()
    story.after(17.9)
    story.decides()


def test_a_grace_is_the_most_that_such_a_head_is_patient() -> None:
    story = contested(grace_s=5)
    story.after(5)
    story.decides("swap to B (grace_over) evicting A", "hold 12 (swapping) for B")


def test_when_the_policy_is_switched_on_the_waiting_so_far_counts() -> None:
    story = contested()
    story.reconfigures(head_release="grace", head_grace_us=1_000_000_000)
    story.arrives(14, "B")
    assert story.state.lanes["B"].waits_from_us == 0
    story.reconfigures(head_release="accrued")
    lane = story.state.lanes["B"]
    assert lane.waits_from_us == sum(story.state.requests[rid].arrived_us for rid in (11, 14))


def test_off_they_leave_no_trace_in_the_state() -> None:
    """So that a log of before, and its checkpoints, mean what they meant."""
    world = test_world.world_of(5)
    world.run()
    assert {(model.load_us, model.uses, model.uses_at_us) for model in world.state.models.values()} == {(0, 0, 0)}


@pytest.mark.parametrize(("eviction", "release"), [("worth", "grace"), ("lru", "accrued"), ("worth", "accrued")])
def test_with_them_every_request_ends_once_in_every_world(
    eviction: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_them(**fields: Any) -> SchedulerSettings:
        return SchedulerSettings(**{**fields, "eviction": eviction, "head_release": release})

    monkeypatch.setattr(test_world, "SchedulerSettings", with_them)
    for seed in range(60):
        world = test_world.world_of(seed)
        world.run()
        world.assert_nothing_is_left()
        assert digest(world.refold()) == digest(world.state), f"world {seed}"
