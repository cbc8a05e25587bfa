"""Prompt caches across swaps: what is saved, what is restored, and that neither can do harm."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventlog import events as e
from eventlog.settings import ModelSettings
from router.scheduler import State, digest, step
from router.scheduler.caches import chance_permille
from tests.scheduler.cache_world import CacheManners, CacheWorld, cache_world_of
from tests.scheduler.chaos import ramble
from tests.scheduler.repeating import wrong
from tests.scheduler.scenario import Scenario
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners

KEPT = ModelSettings(cache_shape="s")


class Story(Scenario):
    """Two models on one GPU; conversation x of A has 3,000 tokens in slot 0, each of which took 1 ms to read."""

    def __init__(self, *, slots: int = 2, **settings: Any) -> None:
        fields: dict[str, Any] = {"keep_caches": True, **settings}
        super().__init__(models={"A": KEPT, "B": KEPT}, slots=slots, **fields)

    def turn(self, rid: int, model: str, conversation: str, messages: int = 1) -> None:
        prefix = [e.PrefixBlock(f"{conversation}{nth}", 100 * (nth + 1)) for nth in range(messages)]
        self.arrives(rid, model, conversation=conversation, prefix=prefix)

    def served(self, rid: int, slot: int, *, read: int = 2980, cached: int = 0) -> None:
        request = self.state.requests[rid]
        told = e.SlotHolds(replica=request.replica, slot=slot, conversation=request.conversation, tokens=read, rid=rid)
        self.happens(told)
        timing = e.SlotTiming(cache_n=cached, prompt_n=read, prompt_us=1000 * read, predicted_n=20)
        self.happens(e.RequestFinished(rid=rid, replica=request.replica, timing=timing))

    def conversed(self) -> None:
        """Two turns of x at A, of which B's request 10 waits for the end. What is decided is still to be told."""
        self.loaded("A")
        self.turn(1, "A", "x")
        self.served(1, 0)
        self.turn(2, "A", "x", 3)
        self.turn(10, "B", "y")
        self.untold()
        self.served(2, 0, read=100, cached=2980)

    def saves(self, model: str, slot: int, conversation: str, tokens: int = 3000) -> None:
        replica = self.replica(model)
        self.happens(
            e.CacheSaved(
                replica=replica,
                slot=slot,
                conversation=conversation,
                tokens=tokens,
                bytes=tokens * 1000,
                took_us=30_000,
            )
        )

    def save_fails(self, model: str, slot: int, conversation: str) -> None:
        replica = self.replica(model)
        self.happens(e.CacheSaveFailed(replica=replica, slot=slot, conversation=conversation, reason="no space"))

    def restores(self, model: str, slot: int, conversation: str, tokens: int = 3000) -> None:
        replica = self.replica(model)
        self.happens(
            e.CacheRestored(
                replica=replica,
                slot=slot,
                conversation=conversation,
                tokens=tokens,
                bytes=tokens * 1000,
                took_us=10_000,
            )
        )

    def restore_fails(self, model: str, slot: int, conversation: str) -> None:
        replica = self.replica(model)
        self.happens(e.CacheRestoreFailed(replica=replica, slot=slot, conversation=conversation, reason="it is torn"))

    def rested(self) -> None:
        """A has served the first turn of x, and rests."""
        self.loaded("A")
        self.turn(1, "A", "x")
        self.served(1, 0)
        self.untold()

    def evicted(self, comes_back: Callable[[], None] | None = None) -> None:
        """x is saved, A is gone, B has served request 10, and A loads again for the next turn, request 11.

        Or for whoever `comes_back` instead.
        """
        self.conversed()
        self.saves("A", 0, "x")
        self.stopped("A")
        self.ready("B")
        if comes_back is None:
            self.turn(11, "A", "x", 5)
        else:
            comes_back()
        self.finishes(10)
        self.stopped("B")
        self.untold()


def test_a_conversation_survives_a_swap() -> None:
    """Saved before its process stops, restored before its next turn is dispatched, and found to have been of use."""
    story = Story()
    story.conversed()
    story.decides("save x of A/0")
    story.after(0.03)
    story.saves("A", 0, "x")
    story.decides("stop A/0 (evict)")
    story.stopped("A")
    story.ready("B")
    story.decides("spawn B/0", "dispatch 10 to B/0 (pay_out)", "finished swap to B")
    story.turn(11, "A", "x", 5)
    story.finishes(10)
    story.decides("swap to A (grace_over) evicting B", "stop B/0 (evict)")
    story.stopped("B")
    story.ready("A")
    story.decides("spawn A/0", "restore x into A/0 for 11")
    story.after(0.01)
    story.restores("A", 0, "x")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")
    story.served(11, 0, read=50, cached=2999)
    assert story.state.caches.hits == 1
    assert 2.5 * SECOND < story.state.caches.saved_us < 3 * SECOND


def test_the_decision_says_what_it_was_made_from() -> None:
    story = Story()
    story.conversed()
    order = story.last(e.CacheSaveOrdered)
    assert (order.slot, order.tokens, order.swap) == (0, 3100, story.last(e.SwapBegun).swap)
    assert 0 < order.chance_permille < 1000
    assert order.worth_us == 3100 * 1000 * order.chance_permille // 1000
    assert 0 < order.cost_us < order.worth_us
    assert order.limit_us == 2 * SECOND
    story.saves("A", 0, "x")
    assert story.last(e.TimerCancelled).kind == "cache"


def test_nothing_is_kept_unless_it_is_switched_on() -> None:
    story = Story(keep_caches=False)
    story.conversed()
    story.decides("stop A/0 (evict)")


def test_an_answer_without_timings_counts_by_its_usage() -> None:
    """As those of /v1/messages, which tell the tokens and what was cached of them, and no times."""
    story = Story()
    story.loaded("A")
    story.turn(1, "A", "x")
    story.turn(10, "B", "y")
    replica = story.replica("A")
    story.happens(e.SlotHolds(replica=replica, slot=0, conversation="x", tokens=3000, rid=1))
    story.untold()
    story.happens(e.RequestFinished(rid=1, replica=replica, prompt_tokens=3000, cached_tokens=0, completion_tokens=9))
    story.decides("save x of A/0")
    assert story.last(e.CacheSaveOrdered).tokens == 3009


def test_a_small_conversation_is_not_worth_a_file() -> None:
    story = Story(keep_min_tokens=4000)
    story.conversed()
    story.decides("stop A/0 (evict)")


def test_what_takes_longer_than_it_saves_is_not_saved() -> None:
    """The first file of A took 30 s: a prompt of 3 s is read again rather."""
    story = Story()
    story.conversed()
    replica = story.replica("A")
    story.happens(e.CacheSaved(replica=replica, slot=0, conversation="x", tokens=3000, bytes=1000, took_us=30 * SECOND))
    story.stopped("A")
    story.ready("B")
    story.turn(11, "A", "x", 5)
    story.finishes(10)
    story.stopped("B")
    story.ready("A")
    if any(isinstance(decision, e.CacheRestoreOrdered) for decision in story.log):
        story.restore_fails("A", 0, "x")
    story.turn(12, "B", "y")
    story.untold()
    story.served(11, 0)
    story.decides("stop A/0 (evict)")


def test_what_says_nothing_of_a_cache_leaves_none() -> None:
    """An embedding has a prompt of 3,000 tokens as well; no restore would ever help it."""
    story = Story()
    story.loaded("A")
    story.turn(1, "A", "x")
    story.turn(10, "B", "y")
    story.happens(e.SlotHolds(replica=story.replica("A"), slot=0, conversation="x", tokens=3000, rid=1))
    story.untold()
    story.happens(e.RequestFinished(rid=1, replica=story.replica("A"), prompt_tokens=3000))
    story.decides("stop A/0 (evict)")


def test_a_conversation_that_never_comes_back_loses_its_worth() -> None:
    """A hundred conversations of one turn each: the chance of return falls; one that goes on has a better one."""
    story = Story()
    story.loaded("A")
    for rid in range(1, 101):
        story.turn(rid, "A", f"once{rid}")
        story.served(rid, 0)
    for rid in range(101, 111):
        story.turn(rid, "A", "often", rid - 100)
        story.served(rid, 0)
    of_model = story.state.caches.models["A"]
    assert chance_permille(story.state, of_model, "once100") < 120
    assert chance_permille(story.state, of_model, "often") > 800
    story.after(24 * 3600)
    story.unload(1, "B")
    assert chance_permille(story.state, of_model, "often") < 10


def test_a_failed_save_costs_the_cache_and_nothing_else() -> None:
    story = Story()
    story.conversed()
    story.untold()
    story.save_fails("A", 0, "x")
    story.decides("stop A/0 (evict)")
    story.stopped("A")
    story.ready("B")
    story.decides("spawn B/0", "dispatch 10 to B/0 (pay_out)", "finished swap to B")
    assert story.state.caches.models["A"].files == {}


def test_a_save_that_does_not_end_holds_the_swap_up_for_the_limit_and_no_longer() -> None:
    story = Story(keep_hold_us=1_500_000)
    story.conversed()
    story.untold()
    story.after(1.4)
    story.decides()
    story.after(0.2)
    story.decides("stop A/0 (evict)")
    story.stopped("A")
    story.ready("B")
    story.untold()
    assert story.last(e.SwapFinished).save_us == 1_500_000
    story.finishes(10)
    story.happens(e.CacheSaveFailed(replica="A#0.1", slot=0, conversation="x", reason="it is gone"))
    assert story.state.caches.replicas.keys() == story.state.replicas.keys()


def test_a_restore_that_does_not_end_holds_the_load_up_for_the_limit_and_no_longer() -> None:
    story = Story(keep_hold_us=1_500_000)
    story.evicted()
    story.ready("A")
    story.decides("restore x into A/0 for 11")
    story.after(1.4)
    story.decides()
    story.after(0.2)
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")
    story.restores("A", 0, "x")
    story.decides()


def test_a_limit_of_zero_saves_nothing_that_anybody_would_wait_for() -> None:
    story = Story(keep_hold_us=0)
    story.conversed()
    story.decides("stop A/0 (evict)")


def test_a_failed_restore_is_not_tried_again() -> None:
    story = Story()
    story.evicted()
    story.ready("A")
    story.untold()
    story.restore_fails("A", 0, "x")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")
    assert story.state.caches.models["A"].files == {}


def test_it_is_the_same_if_the_broken_connection_is_noticed_first() -> None:
    story = Story()
    story.evicted()
    story.ready("A")
    story.untold()
    story.happens(
        e.CacheRestoreFailed(replica=story.replica("A"), slot=0, conversation="x", reason="it is gone", broke=True)
    )
    story.untold()
    story.crashes("A")
    assert story.last(e.CacheGivenUp).why == "crash"
    assert story.state.models["A"].crashes == []


def test_a_process_that_dies_over_a_file_has_not_crashed_and_its_model_gets_no_more_files() -> None:
    """llama-server does not survive a file that is cut short: the load is done again without it, at once."""
    story = Story()
    story.evicted()
    story.ready("A")
    story.untold()
    story.crashes("A")
    story.decides("give up caches of A (crash)", "finished swap to A", "swap to A (idle)", "spawn A/0")
    story.happens(e.CacheRestoreFailed(replica="A#0.3", slot=0, conversation="x", reason="it is gone"))
    story.ready("A")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")
    assert story.state.models["A"].crashes == []


def test_restores_that_bring_nothing_are_given_up() -> None:
    """As on models whose cache cannot be taken up again: noticed from what the next turn had to read."""
    story = Story()
    story.evicted()
    story.ready("A")
    story.restores("A", 0, "x")
    story.turn(12, "B", "y", 2)
    story.served(11, 0, read=3100, cached=0)
    story.saves("A", 0, "x")
    story.stopped("A")
    story.ready("B")
    story.turn(13, "A", "x", 7)
    story.finishes(12)
    story.stopped("B")
    story.ready("A")
    story.restores("A", 0, "x")
    story.untold()
    story.served(13, 0, read=3200, cached=0)
    story.decides("give up caches of A (brings_nothing)")
    assert story.last(e.CacheGivenUp).restores == 2
    story.turn(14, "B", "y", 3)
    story.decides("swap to B (idle) evicting A", "stop A/0 (evict)")
    story.reloads(A=msgspec.structs.replace(KEPT, cache_shape="other"))
    assert story.state.caches.models["A"].given_up == ""


def test_a_client_that_leaves_out_what_the_model_thought_still_finds_its_prompt() -> None:
    """Of 3,000 restored tokens 2,700 were thoughts, which are not sent again: 300 that are found are something."""
    story = Story()
    story.evicted()
    story.ready("A")
    story.restores("A", 0, "x")
    story.served(11, 0, read=100, cached=300)
    assert (story.state.caches.hits, story.state.caches.models["A"].useless) == (1, 0)


def test_who_waits_is_restored_before_who_was_here_last() -> None:
    """x waits for A; z was used later, and gets the slot that is left."""
    story = Story(slots=3)
    story.loaded("A")
    for rid, conversation in ((1, "x"), (2, "z"), (3, "x"), (4, "z")):
        story.turn(rid, "A", conversation, rid)
        if rid == 4:
            story.turn(10, "B", "y")
        story.after(1)
        story.served(rid, "xz".index(conversation))
    story.saves("A", 0, "x")
    story.saves("A", 1, "z")
    story.stopped("A")
    story.ready("B")
    story.turn(11, "A", "x", 5)
    story.finishes(10)
    story.stopped("B")
    story.untold()
    story.ready("A")
    story.restores("A", 0, "x")
    story.restores("A", 1, "z")
    story.decides(
        "restore x into A/0 for 11", "restore z into A/0", "dispatch 11 to A/0 (pay_out)", "finished swap to A"
    )


def test_a_stranger_who_waits_is_left_a_slot() -> None:
    """One slot, and somebody new waits for it: what was here last is not restored, only to be thrown out again."""
    story = Story(slots=1)
    story.evicted(lambda: story.turn(11, "A", "new"))
    story.ready("A")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")


def test_an_edited_conversation_is_not_taken_for_the_saved_one() -> None:
    """It has the same beginning, and what follows is another: matched by the hashes of its growing prompt."""
    story = Story(slots=1)
    other = [e.PrefixBlock("x0", 100), e.PrefixBlock("edited", 200), e.PrefixBlock("edited too", 300)]
    story.evicted(lambda: story.arrives(11, "A", conversation="x", prefix=other))
    story.ready("A")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")


def test_an_idle_slot_is_saved_while_another_one_still_generates() -> None:
    story = Story()
    story.rested()
    story.turn(2, "A", "z")
    story.happens(e.SlotHolds(replica=story.replica("A"), slot=1, conversation="z", tokens=10, rid=2))
    story.untold()
    story.turn(10, "B", "y")
    story.decides("swap to B (grace_over) evicting A", "save x of A/0")
    story.saves("A", 0, "x")
    story.decides()
    story.finishes(2)
    story.decides("stop A/0 (evict)")


def test_a_slot_that_nobody_has_told_of_is_not_saved_early() -> None:
    """Request 2 works in some slot; it may be the one that x was in."""
    story = Story()
    story.rested()
    story.turn(2, "A", "z")
    story.untold()
    story.turn(10, "B", "y")
    story.decides("swap to B (grace_over) evicting A")


def test_a_file_that_has_it_all_is_not_written_again() -> None:
    """Restored, not used, evicted again."""
    story = Story()
    story.evicted()
    story.leaves(11)
    story.ready("A")
    story.restores("A", 0, "x")
    story.turn(12, "B", "y")
    story.decides(
        "restore x into A/0",
        "finished swap to A",
        "swap to B (idle) evicting A",
        "stop A/0 (evict)",
    )


def test_a_file_of_another_shape_is_left_alone() -> None:
    """The owner changes what shapes the cache while A is away."""
    story = Story()

    def changed() -> None:
        story.reloads(A=msgspec.structs.replace(KEPT, cache_shape="other"))
        story.turn(11, "A", "x", 5)

    story.evicted(changed)
    story.ready("A")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")


def test_a_reload_that_leaves_the_shape_alone_keeps_the_conversation() -> None:
    """Other arguments: A is stale and unloaded once idle, saved before, and restored with the next request."""
    story = Story()
    story.rested()
    story.reloads(A=msgspec.structs.replace(KEPT, fingerprint="more threads"))
    story.decides("unload A (stale)", "save x of A/0")
    story.saves("A", 0, "x")
    story.stopped("A")
    story.turn(2, "A", "x", 3)
    story.untold()
    story.ready("A")
    story.decides("restore x into A/0 for 2")


def test_a_reload_that_changes_the_shape_saves_nothing() -> None:
    story = Story()
    story.rested()
    story.reloads(A=msgspec.structs.replace(KEPT, cache_shape="other", fingerprint="other"))
    story.decides("unload A (stale)", "stop A/0 (stale)")


def test_an_unload_for_its_ttl_saves_first() -> None:
    story = Story()
    story.reloads(A=msgspec.structs.replace(KEPT, ttl_us=60 * SECOND))
    story.rested()
    story.after(61)
    story.decides("unload A (ttl)", "save x of A/0")


def test_an_unload_by_force_saves_nothing() -> None:
    story = Story()
    story.rested()
    story.unload(1, "A", force=True)
    story.decides("unload A (unload)", "stop A/0 (unload, force)")


@pytest.mark.parametrize("persist", [False, True])
def test_the_end_of_the_router_saves_only_what_is_to_outlive_it(persist: bool) -> None:
    story = Story(keep_persist=persist)
    story.rested()
    story.router_stops(30)
    if persist:
        story.decides("save x of A/0")
        story.saves("A", 0, "x")
    story.decides("stop A/0 (stopping)")


def test_a_file_of_an_earlier_run_is_restored() -> None:
    story = Story()
    story.happens(
        e.CacheFound(model="A", conversation="x", tokens=3000, bytes=1000, prefix="x2", shape="s", used_us=story.now_us)
    )
    story.turn(1, "A", "x", 5)
    story.untold()
    story.ready("A")
    story.decides("restore x into A/0 for 1")


def test_a_dropped_file_is_not_restored() -> None:
    story = Story()
    story.evicted()
    story.happens(e.CacheDropped(model="A", conversation="x"))
    story.ready("A")
    story.decides("dispatch 11 to A/0 (pay_out)", "finished swap to A")


def test_a_swap_that_is_called_off_while_it_saves_leaves_the_victim_serving() -> None:
    story = Story()
    story.conversed()
    story.untold()
    story.leaves(10)
    story.decides("abort swap to B (unwanted)")
    story.turn(3, "A", "x", 5)
    story.decides("dispatch 3 to A/0 (least_busy)")
    story.saves("A", 0, "x")
    story.decides()


# --- worlds ---------------------------------------------------------------------------------------------------------

WORLDS = 40


@pytest.mark.parametrize("tens", range(WORLDS // 10))
def test_caches_that_fail_are_slow_lie_or_kill_break_nothing(tens: int) -> None:
    """`scripts/simulate --caches` has more of these."""
    orders = failures = 0
    for seed in range(10 * tens, 10 * tens + 10):
        kind = "caches"
        try:
            world = cache_world_of(seed)
            world.run()
            world.assert_nothing_is_left()
            assert digest(world.refold()) == digest(world.state)
            kind = "caches-chaos"
            made = ramble(seed, 60, keep=True)
            assert digest(made.refold()) == digest(made.state)
        except Exception as error:
            raise wrong(kind, seed, error) from error
        orders += sum(isinstance(event, e.CacheSaveOrdered | e.CacheRestoreOrdered) for event in world.record)
        failures += sum(isinstance(event, e.CacheSaveFailed | e.CacheRestoreFailed) for event in world.record)
    assert orders > 20
    assert failures > 2


def test_where_nothing_goes_wrong_restores_bring_something() -> None:
    hits = 0
    for seed in range(20):
        world = cache_world_of(seed, faults=False)
        world.run()
        assert set(world.outcomes.values()) == {"finished"}, f"world {seed}"
        assert not [event for event in world.record if isinstance(event, e.CacheGivenUp)], f"world {seed}"
        hits += world.state.caches.hits
    assert hits > 40


def test_files_that_are_good_for_nothing_are_given_up_in_time() -> None:
    """Every file lies: after two restores that brought nothing, A takes no more."""
    world = CacheWorld(
        Story().settings,
        manners=Manners(load_s=(1.0, 1.0), service_s=(1.0, 1.0)),
        cache_manners=CacheManners(lies=1.0),
    )
    for nth in range(40):
        world.turn(5.0 * nth, "AB"[nth % 2], "xy"[nth % 2])
    world.run()
    assert set(world.outcomes.values()) == {"finished"}
    for model in "AB":
        restored = [event for event in world.record if isinstance(event, e.CacheRestored) and event.replica[0] == model]
        assert len(restored) == 2


def test_the_recorded_facts_lead_to_the_recorded_decisions_again() -> None:
    for seed in range(10):
        world = cache_world_of(seed)
        world.run()
        state = State()
        again: list[e.Event] = []
        for event in world.record:
            if isinstance(event, e.Fact):
                again += step(state, event)
        made = [
            msgspec.structs.replace(event, seq=0, at_us=0, run=0, cause=0)
            for event in world.record
            if isinstance(event, e.Decision)
        ]
        assert again == made
