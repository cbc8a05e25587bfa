"""The pretended world, in stories that can be reckoned by hand."""

from typing import Any

import msgspec
import pytest

from eventlog import events as e
from replay.costs import Costs, ModelCosts, Phase
from replay.engine import Engine
from replay.measures import jain
from replay.workload import Call
from replay.world import START_US, World
from tests.replay.pretended import RecordingWorld, calls_of, workload_of

SIMPLE = ModelCosts(
    slots=2,
    loads_us=(6_000_000,),
    stops_us=(500_000,),
    prefill=Phase(token_us=1000.0, same=1.0),
    decode=Phase(token_us=10_000.0, same=0.0),
)
"""100 tokens are read in 0.1 s; the first of 11 tokens comes with them, the others in 0.1 s."""
COSTS = Costs(default=SIMPLE)


def run(calls: tuple[Call, ...], costs: Costs = COSTS, **settings: Any) -> World:
    world = World(workload_of(calls, **settings), costs)
    world.run()
    return world


def seconds(world: World, *, of: str = "ended_us") -> list[float]:
    return [(getattr(outcome, of) - START_US) / 1e6 for outcome in world.outcomes]


def test_a_request_waits_for_its_load_reads_its_prompt_and_makes_its_tokens() -> None:
    world = run(calls_of((1.0, "a"), output=11))
    assert seconds(world, of="dispatched_us") == [7.0]
    assert seconds(world, of="first_us") == [7.1]
    assert seconds(world) == [7.2]


def test_two_prompts_share_the_machine_and_the_shorter_one_is_through_first() -> None:
    """Together, 100 tokens take 0.2 s; the other 200 of the longer one then take 0.2 s alone."""
    calls = (
        Call(number=1, at_us=0, model="a", prompt_tokens=100, output_tokens=1),
        Call(number=2, at_us=0, model="a", prompt_tokens=300, output_tokens=1),
    )
    assert seconds(run(calls), of="first_us") == [6.2, 6.4]


def test_a_third_request_waits_for_a_slot() -> None:
    world = run(calls_of((0, "a"), (0, "a"), (0, "a"), output=1))
    assert seconds(world, of="dispatched_us") == [6.0, 6.0, 6.2]


def test_alternating_models_swap_at_grace_0_and_do_not_within_the_grace() -> None:
    """a b a b: in order, three swaps after the first load; with a grace, all of a first."""
    arrivals = calls_of((0, "a"), (0, "b"), (0.1, "a"), (0.1, "b"), output=11)
    strict, patient = run(arrivals), run(arrivals, head_grace_us=30_000_000)
    assert (strict.served, strict.tally.loads) == (["a", "b", "a", "b"], 4)
    assert (patient.served, patient.tally.loads) == (["a", "a", "b", "b"], 2)


def test_the_next_turn_comes_after_its_answer_however_long_that_took() -> None:
    """Recorded 2 s after the first, it comes 0.5 s of thinking after the answer at 6.2 s."""
    calls = (
        Call(number=1, at_us=0, model="a", prompt_tokens=100, output_tokens=11),
        Call(number=2, at_us=2_000_000, model="a", prompt_tokens=100, output_tokens=11, after=1, think_us=500_000),
    )
    assert seconds(run(calls), of="arrived_us") == [0.0, 6.7]


def test_a_client_that_leaves_after_some_tokens_frees_its_slot() -> None:
    """Three tokens: the first with the prompt, two more; then a slot is free once the replica has let go."""
    calls = tuple(
        Call(number=n, at_us=0, model="a", prompt_tokens=100, output_tokens=101, leaves_after_tokens=after)
        for n, after in ((1, 3), (2, -1), (3, -1))
    )
    world = run(calls)
    assert [outcome.end for outcome in world.outcomes] == ["cancelled", "finished", "finished"]
    left_s = 6.22
    assert seconds(world)[0] == left_s
    assert seconds(world, of="dispatched_us")[2] == pytest.approx(left_s + SIMPLE.release_us / 1e6)


def test_a_client_that_leaves_while_it_waits_is_never_served() -> None:
    calls = (Call(number=1, at_us=0, model="a", prompt_tokens=1, output_tokens=1, leaves_after_us=2_000_000),)
    world = run(calls)
    assert (world.outcomes[0].end, world.outcomes[0].dispatched_us) == ("cancelled", -1)


def test_a_client_that_leaves_with_its_last_byte_has_been_there() -> None:
    calls = (
        Call(number=1, at_us=0, model="a", prompt_tokens=1, output_tokens=1, body_us=500_000, leaves_after_us=0),
        Call(number=2, at_us=0, model="a", prompt_tokens=1, output_tokens=1, after=1, think_us=1_000_000),
    )
    world = run(calls)
    assert [outcome.end for outcome in world.outcomes] == ["cancelled", "finished"]
    assert seconds(world, of="arrived_us") == [0.0, 1.5]


def test_what_an_unload_by_force_cuts_off_fails_and_its_conversation_goes_on() -> None:
    """Metadata is answered or sent again; a generation in flight ends with an error."""
    calls = (
        Call(number=1, at_us=0, model="a", prompt_tokens=100, output_tokens=1001),
        Call(number=2, at_us=0, model="a", prompt_tokens=1, output_tokens=1, after=1, think_us=1_000_000),
        Call(number=3, at_us=6_999_000, model="a", work="metadata"),
    )
    workload = msgspec.structs.replace(
        workload_of(calls), happenings=((7_000_000, e.AdminUnload(op=1, model="a", force=True)),)
    )
    world = World(workload, COSTS)
    world.run()
    assert [outcome.end for outcome in world.outcomes] == ["failed", "finished", "finished"]
    assert not world.state.requests


def test_a_loaded_prompt_is_read_once_until_the_model_is_reloaded() -> None:
    """The second turn reads only what is new; after b had the GPU, a reads all of it again."""
    blocks = (("h1", 100), ("h2", 200), ("h3", 300))
    calls = tuple(
        Call(number=n, at_us=at_s * 1_000_000, model=model, prompt_tokens=100 * n, output_tokens=1, prefix=blocks[:n])
        for n, at_s, model in ((1, 0, "a"), (2, 10, "a"), (3, 40, "a"))
    )
    other = Call(number=4, at_us=20_000_000, model="b", prompt_tokens=100, output_tokens=1)
    assert [outcome.cached_tokens for outcome in run(calls).outcomes] == [0, 101, 201]
    assert [outcome.cached_tokens for outcome in run((*calls, other)).outcomes] == [0, 101, 0, 0]


def test_replicas_that_share_a_machine_slow_each_other_down() -> None:
    """b makes tokens while a does: each takes half as long again."""
    shared = msgspec.structs.replace(SIMPLE, decode=Phase(token_us=10_000.0, elsewhere=0.5))
    calls = calls_of((0, "a"), (0, "b"), prompt=0, output=101)
    alone_s, beside_s = seconds(run(calls, gpus=2)), seconds(run(calls, Costs(default=shared), gpus=2))
    assert alone_s == pytest.approx([7.0, 7.0])
    assert beside_s == pytest.approx([7.5, 7.5], abs=1e-5)


def test_the_same_seed_gives_the_same_run_and_another_seed_draws_other_loads() -> None:
    costs = Costs(default=msgspec.structs.replace(SIMPLE, loads_us=(5_000_000, 4_000_000, 9_000_000)))
    arrivals = calls_of(*((n * 0.7, "ab"[n % 2]) for n in range(40)))

    def makespan_s(seed: int) -> float:
        return World(workload_of(arrivals), costs, seed=seed).run().makespan_s

    assert makespan_s(1) == makespan_s(1)
    assert len({makespan_s(seed) for seed in range(5)}) > 1


def test_what_the_owner_did_happens_again() -> None:
    """A model is wished for before anybody asks, and unloaded in the middle of nothing."""
    workload = workload_of(calls_of((10.0, "a"), (40.0, "a"), output=11))
    workload = msgspec.structs.replace(
        workload,
        happenings=(
            (1_000_000, e.LoadWished(op=7, rid=99, model="a")),
            (20_000_000, e.AdminUnload(op=8, model="a")),
        ),
    )
    world = World(workload, COSTS)
    world.run()
    assert seconds(world, of="dispatched_us") == [10.0, 46.0]


def test_every_request_of_a_long_run_ends_and_nothing_is_left() -> None:
    """A thousand of three models on two GPUs, with every kind of client."""
    calls = tuple(
        Call(
            number=n,
            at_us=n * 200_000,
            model="abc"[n * 7 % 3],
            prompt_tokens=n * 31 % 400,
            output_tokens=n * 17 % 90,
            leaves_after_us=3_000_000 if n % 11 == 0 else -1,
            leaves_after_tokens=5 if n % 13 == 0 else -1,
            work="metadata" if n % 17 == 0 else "generation",
            slots_wanted=1 + n % 3,
            body_us=n % 5 * 1000,
            after=n - 20 if n % 9 == 0 and n > 20 else 0,
        )
        for n in range(1, 1001)
    )
    world = RecordingWorld(workload_of(calls, gpus=2, head_grace_us=5_000_000, force_load_us=60_000_000), COSTS)
    measures = world.run()
    assert measures.finished + measures.cancelled == 1000
    assert not world.state.requests
    assert not world.state.swaps
    assert all(not engine.jobs and not engine.busy for engine in world._engines.values())


def test_an_engine_does_the_work_it_was_given_however_often_it_is_looked_at() -> None:
    looked, left_alone = Engine(SIMPLE, 0), Engine(SIMPLE, 0)
    for engine in (looked, left_alone):
        engine.start(0, 1, 100, 11, 1)
    for now_us in range(0, 90_000, 7):
        assert looked.look(now_us) == ([], [])
    assert looked.next_us() == left_alone.next_us() == 100_000


def test_jain_s_index_is_1_for_equals_and_1_nth_when_one_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
