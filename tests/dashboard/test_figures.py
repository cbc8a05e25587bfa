"""Figures are pure functions of rows: what is drawn where, and that nothing is drawn that was not there."""

from typing import Any

from dashboard.figures import gpus, queue, residency, tokens
from dashboard.figures.axes import every_step, with_gaps

SECOND = 1_000_000
START_US = 1_750_000_000 * SECOND
STEP_US = 10 * SECOND
UNTIL_US = START_US + 600 * SECOND


def at(second: float) -> int:
    return START_US + round(second * SECOND)


def ms(second: float) -> float:
    return at(second) / 1000


def traces(figure: Any) -> dict[str, Any]:
    return {trace["name"]: trace for trace in figure["data"]}


def stay(
    gpu: int, model: str, start: float, end: float | None, phase: str = "ready", intervals: int = 1
) -> dict[str, Any]:
    return {
        "gpu": gpu, "model": model, "phase": phase, "from_us": at(start), "until_us": None if end is None else at(end),
        "lasted_us": (UNTIL_US if end is None else at(end)) - at(start),
        "intervals": intervals, "replica": f"{model}#0", "swap": 1,
    }  # fmt: skip


def swap(gpu: int, number: int, second: float, swaps: int = 1) -> dict[str, Any]:
    return {
        "gpu": gpu, "at_us": at(second), "begun_us": at(second), "swap": number, "swaps": swaps, "target": "b",
        "why": "grace_over", "took_us": 5 * SECOND, "swapping_us": swaps * 5 * SECOND,
    }  # fmt: skip


def residency_of(rows: list[dict[str, Any]], swaps: list[dict[str, Any]] | None = None) -> Any:
    return residency.figure(rows, swaps or [], {"a": 0, "b": 1}, START_US, UNTIL_US)


# --- over time ----------------------------------------------------------------------------------------------------


def test_a_step_in_which_nothing_happened_counts_as_zero() -> None:
    columns = every_step([{"at_us": at(10), "n": 7}], START_US, at(40), STEP_US, ("n",))
    assert columns == {"at_ms": [ms(0), ms(10), ms(20), ms(30)], "n": [0, 7, 0, 0]}


def test_no_line_is_drawn_across_a_time_without_samples() -> None:
    rows = [{"at_us": at(second), "n": second} for second in (0, 10, 20, 100, 110)]
    columns = with_gaps(rows, STEP_US, ("n",))
    assert columns["n"] == [0, 10, 20, None, 100, 110]
    assert columns["at_ms"] == [ms(each) for each in (0, 10, 20, 30, 100, 110)]


# --- GPUs ---------------------------------------------------------------------------------------------------------


def sample(gpu: int, second: float, busy: float | None, used: float | None = 6000, total: int | None = 24000) -> Any:
    return {
        "at_us": at(second), "gpu": gpu, "utilisation_percent": busy, "used_mib": used, "total_mib": total,
        "temperature_c": 50, "power_mw": 100_000,
    }  # fmt: skip


def test_each_gpu_has_a_row_with_its_utilisation_and_its_memory_in_percent() -> None:
    figure = gpus.figure([sample(0, 0, 20), sample(0, 10, 40), sample(1, 0, 90, 12_000)], START_US, UNTIL_US, STEP_US)
    assert figure is not None
    busy0, memory0, busy1, memory1 = figure["data"]
    assert (busy0["y"], memory0["y"]) == ([20, 40], [25, 25])
    assert (busy1["y"], memory1["y"]) == ([90], [50])
    assert memory1["customdata"] == ["11.7 GiB of 23.4 GiB"]
    assert {busy0["yaxis"], memory0["yaxis"]} == {"y"}
    assert {busy1["yaxis"], memory1["yaxis"]} == {"y2"}
    upper, lower = figure["layout"]["yaxis"]["domain"], figure["layout"]["yaxis2"]["domain"]
    assert 0 <= lower[0] < lower[1] < upper[0] < upper[1] <= 1
    assert [each["text"] for each in figure["layout"]["annotations"]] == ["GPU 0 · 23.4 GiB", "GPU 1 · 23.4 GiB"]


def test_a_driver_that_does_not_tell_leaves_the_line_out() -> None:
    figure = gpus.figure([sample(0, 0, None, None, None)], START_US, UNTIL_US, STEP_US)
    assert figure is not None
    assert [trace["y"] for trace in figure["data"]] == [[None], [None]]


def test_eight_gpus_make_a_higher_figure_and_none_makes_none() -> None:
    one = gpus.figure([sample(0, 0, 1)], START_US, UNTIL_US, STEP_US)
    eight = gpus.figure([sample(gpu, 0, 1) for gpu in range(8)], START_US, UNTIL_US, STEP_US)
    assert one is not None
    assert eight is not None
    assert eight["layout"]["height"] > one["layout"]["height"] + 7 * 60
    assert gpus.figure([], START_US, UNTIL_US, STEP_US) is None


# --- residency ----------------------------------------------------------------------------------------------------


def test_a_stay_is_a_bar_from_its_beginning_to_its_end_and_one_that_lasts_ends_now() -> None:
    figure = residency_of([stay(0, "a", 0, 100), stay(0, "b", 110, None)])
    a, b = traces(figure)["a"], traces(figure)["b"]
    assert (a["base"], a["x"]) == ([ms(0)], [100_000])
    assert (b["base"], b["x"]) == ([ms(110)], [490_000])
    assert a["customdata"][0].endswith("loaded for 100 s")
    assert b["customdata"][0].endswith("loaded for 8 min 10 s, and it goes on")
    assert a["y"] == b["y"], "one after the other, they share a lane"


def test_models_that_share_a_gpu_have_a_lane_each_and_keep_it() -> None:
    figure = residency_of([stay(0, "a", 0, 300), stay(0, "b", 50, 200), stay(0, "b", 320, None), stay(1, "a", 0, None)])
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    lanes = {(trace["name"], place) for trace in bars for place in trace["y"]}
    assert lanes == {("a", 0), ("b", 1), ("a", 2 + residency.GPU_GAP)}
    assert figure["layout"]["yaxis"]["ticktext"] == ["GPU 0", "GPU 1"]
    assert figure["layout"]["yaxis"]["tickvals"] == [0.5, 2 + residency.GPU_GAP]


def test_loading_and_stopping_are_hatched_in_the_colour_of_the_model() -> None:
    figure = residency_of([stay(0, "a", 0, 10, "loading"), stay(0, "a", 10, 90), stay(0, "a", 90, 95, "stopping")])
    by_phase = {trace["meta"]["phase"]: trace for trace in figure["data"] if "meta" in trace}
    assert "pattern" not in by_phase["ready"]["marker"]
    assert by_phase["loading"]["marker"]["pattern"]["shape"] != by_phase["stopping"]["marker"]["pattern"]["shape"]
    assert {trace["marker"]["color"] for trace in by_phase.values()} == {"var(--hue-0)"}


def test_a_swap_is_marked_where_it_began_and_leads_to_its_page() -> None:
    figure = residency_of([stay(0, "a", 0, 100), stay(1, "b", 0, None)], [swap(0, 41, 100), swap(1, 77, 30, swaps=3)])
    marks = traces(figure)["swaps"]
    assert marks["customdata"] == [41, 77]
    assert marks["x"] == [ms(100), ms(30)]
    assert marks["text"][0].startswith("<b>swap 41</b>: to b in 5 s")
    assert marks["text"][1].startswith("3 swaps within a moment, 15 s in all")


def test_html_in_a_name_is_drawn_as_text() -> None:
    name = "<b>x</b>&<script>"
    figure = residency.figure([stay(0, name, 0, None)], [], {}, START_US, UNTIL_US)
    assert figure is not None
    (bar,) = (trace for trace in figure["data"] if trace["type"] == "bar")
    assert bar["name"] == "&lt;b&gt;x&lt;/b&gt;&amp;&lt;script&gt;"
    assert "<script" not in bar["customdata"][0]
    assert bar["meta"]["model"] == name, "the legend makes text of it by itself"
    assert bar["marker"]["color"] == "var(--line-strong)", "a model that is configured no more is grey"


def test_where_nothing_was_loaded_nothing_is_drawn() -> None:
    assert residency_of([], [swap(0, 1, 1)]) is None


# --- queue --------------------------------------------------------------------------------------------------------


def depth(second: float, most: int, last: int) -> dict[str, Any]:
    return {
        "at_us": at(second), "queued_max": most, "queued_last": last, "in_flight_max": 1, "in_flight_last": 1,
    }  # fmt: skip


def test_between_changes_the_queue_stays_as_it_was() -> None:
    """A step without a change has no row: the last value holds until the next row, and until now at the end."""
    figure = queue.figure([depth(0, 5, 2), depth(100, 3, 1)], [], START_US, UNTIL_US, STEP_US)
    waiting = traces(figure)["waiting"]
    assert list(zip(waiting["x"], waiting["y"], strict=True)) == [
        (ms(0), 5), (ms(10), 2), (ms(100), 3), (ms(110), 1), (ms(600), 1),
    ]  # fmt: skip
    assert waiting["line"]["shape"] == "hv"


def test_waits_are_drawn_in_seconds_and_said_with_their_unit() -> None:
    waits = [{"at_us": at(0), "requests": 3, "wait_p50_us": 1_500_000, "wait_p95_us": 90_000_000, "wait_max_us": 1}]
    figure = queue.figure([], waits, START_US, UNTIL_US, STEP_US)
    assert traces(figure)["half of them"]["y"] == [1.5]
    assert traces(figure)["95 %"]["y"] == [90.0]
    assert traces(figure)["95 %"]["customdata"] == ["90 s"]
    assert queue.figure([], [], START_US, UNTIL_US, STEP_US) is None


def test_short_waits_are_drawn_in_milliseconds_and_few_requests_in_whole_numbers() -> None:
    waits = [{"at_us": at(0), "requests": 3, "wait_p50_us": 1_500, "wait_p95_us": 90_000, "wait_max_us": 1}]
    figure = queue.figure([depth(0, 2, 1)], waits, START_US, UNTIL_US, STEP_US)
    assert figure is not None
    assert traces(figure)["95 %"]["y"] == [90.0]
    assert figure["layout"]["yaxis2"]["ticksuffix"] == " ms"
    assert figure["layout"]["yaxis"]["dtick"] == 1
    crowded = queue.figure([depth(0, 2000, 1)], [], START_US, UNTIL_US, STEP_US)
    assert crowded is not None
    assert "dtick" not in crowded["layout"]["yaxis"]


# --- tokens -------------------------------------------------------------------------------------------------------


def test_tokens_are_per_second_and_the_prompts_are_stacked() -> None:
    made = [{"at_us": at(10), "frames": 500, "frames_per_s": 50.0, "gap_max_us": 1, "stalls": 0}]
    prompts = [{"at_us": at(0), "cached_tokens": 300, "uncached_tokens": 700, "cached_share": 0.3}]
    figure = tokens.figure(made, prompts, START_US, at(30), STEP_US)
    assert figure is not None
    assert traces(figure)["generated"]["y"] == [0, 50.0, 0]
    assert traces(figure)["computed"]["y"] == [70, 0, 0]
    assert traces(figure)["cached"]["y"] == [30, 0, 0]
    assert figure["layout"]["barmode"] == "stack"
    assert tokens.figure([], [], START_US, UNTIL_US, STEP_US) is None


def test_a_step_that_has_just_begun_is_not_drawn_as_a_fall() -> None:
    """Half of the last step has passed, with half of its tokens."""
    prompts = [{"at_us": at(second), "cached_tokens": 0, "uncached_tokens": n} for second, n in ((0, 700), (10, 350))]
    figure = tokens.figure([], prompts, START_US, at(15), STEP_US)
    assert figure is not None
    assert traces(figure)["computed"]["y"] == [70, 70]


def test_less_than_a_token_per_second_is_not_told_in_thousandths() -> None:
    """Only thousands get a letter."""
    slow = [{"at_us": at(0), "frames_per_s": 0.6}]
    fast = [{"at_us": at(0), "frames_per_s": 2400.0}]
    for made, expected in ((slow, "~g"), (fast, "~s")):
        figure = tokens.figure(made, [], START_US, at(30), STEP_US)
        assert figure is not None
        assert figure["layout"]["yaxis"]["tickformat"] == expected
