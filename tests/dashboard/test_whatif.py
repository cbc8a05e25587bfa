"""A what-if: one at a time, bounded, cancelled at will, there again after a reload, its own error shown first."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboard.app import create_app
from dashboard.commands import Limits
from dashboard.whatif import Asked, Busy, Refused, WhatIf, arguments
from dashboard.whatif_page import FIELDS
from dashboard.whatif_result import MEASURES, changed, simulated, trust, tuned
from replay.measures import Measures
from tests.dashboard.rig import Dashboard, dashboard_on, text_of
from tests.projections.logs import unruly_log

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("whatif")
    unruly_log(folder / "log", runs=1, requests=40, segment_bytes=1_000_000)
    with dashboard_on(folder) as running:
        yield running


def client_of(dashboard: Dashboard) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(dashboard.history))
    return httpx.AsyncClient(transport=transport, base_url="http://dashboard")


async def finished(client: httpx.AsyncClient) -> dict[str, Any]:
    for _ in range(1500):
        told: dict[str, Any] = (await client.get("/dash/api/whatif")).json()
        if told["state"] != "running":
            return told
        await asyncio.sleep(0.02)
    raise AssertionError("it never ended")


def test_a_change_is_tried_and_drawn_beside_what_happened_its_own_error_first(dashboard: Dashboard) -> None:
    async def go() -> tuple[dict[str, Any], str, str]:
        async with client_of(dashboard) as client:
            empty = (await client.get("/dash/whatif")).text
            body = json.dumps({"kind": "simulate", "settings": {"QUEUE_HEAD_GRACE": " 20 ", "NUM_GPUS": ""}})
            begun = await client.post("/dash/api/whatif", content=body, headers=JSON)
            assert begun.status_code == 202, begun.text
            return await finished(client), empty, (await client.get("/dash/whatif")).text

    told, empty, html = asyncio.run(go())

    assert "Nothing has been tried yet" in empty
    assert told["state"] == "done", told
    assert told["result"]["sets"] == ["QUEUE_HEAD_GRACE=20"]
    shown = text_of(html)
    assert shown.index("How far off the simulator is") < shown.index("What would have changed")
    assert "QUEUE_HEAD_GRACE=20" in shown
    assert html.count("data-figure=") == 3
    assert "None" not in shown


def test_a_search_recommends_and_says_what_to_paste_or_that_nothing_is_better(dashboard: Dashboard) -> None:
    async def go() -> tuple[dict[str, Any], str]:
        async with client_of(dashboard) as client:
            body = json.dumps({"kind": "tune", "settings": {"QUEUE_HEAD_GRACE": "0, 5, 20"}})
            begun = await client.post("/dash/api/whatif", content=body, headers=JSON)
            assert begun.status_code == 202, begun.text
            return await finished(client), (await client.get("/dash/whatif?part=1")).text

    told, html = asyncio.run(go())

    assert told["state"] == "done", told
    assert len(told["result"]["trials"]) == 3
    shown = text_of(html)
    assert "Recommended" in shown
    assert told["result"]["why"].split(";")[0][1:] in shown
    assert "<html" not in html


def test_only_one_runs_at_a_time_and_it_can_be_cancelled(dashboard: Dashboard) -> None:
    async def go() -> None:
        async with client_of(dashboard) as client:
            body = json.dumps({"kind": "tune"})
            assert (await client.post("/dash/api/whatif", content=body, headers=JSON)).status_code == 202
            second = await client.post("/dash/api/whatif", content=body, headers=JSON)
            assert second.status_code == 409
            assert "another what-if is running" in second.text
            running = (await client.get("/dash/whatif")).text
            assert 'id="cancel"' in running
            ended = await client.post("/dash/api/whatif/cancel", content="{}", headers=JSON)
            assert ended.json()["state"] == "cancelled"
            assert (await client.post("/dash/api/whatif/cancel", content="{}", headers=JSON)).status_code == 404
            assert "It was cancelled" in (await client.get("/dash/whatif")).text

    asyncio.run(go())


def test_what_the_command_refuses_is_shown_as_it_says_it(dashboard: Dashboard) -> None:
    async def go() -> str:
        async with client_of(dashboard) as client:
            body = json.dumps({"settings": {"replicas.NOBODY": "2"}})
            assert (await client.post("/dash/api/whatif", content=body, headers=JSON)).status_code == 202
            assert (await finished(client))["state"] == "failed"
            return (await client.get("/dash/whatif")).text

    assert "there is no model &#39;NOBODY&#39;; there are A, B, C" in asyncio.run(go())


def test_a_form_of_another_site_cannot_begin_one(dashboard: Dashboard) -> None:
    """A browser sends text/plain anywhere without asking; JSON it does not."""

    async def go() -> list[int]:
        async with client_of(dashboard) as client:
            plain = {"content-type": "text/plain"}
            bodies = ("/dash/api/whatif", "/dash/api/whatif/cancel")
            return [(await client.post(path, content="{}", headers=plain)).status_code for path in bodies]

    assert asyncio.run(go()) == [415, 415]


def test_its_progress_is_told_to_whoever_listens_until_its_end(dashboard: Dashboard) -> None:
    async def go() -> list[dict[str, Any]]:
        whatif = WhatIf(dashboard.history.log_dir)
        whatif.start(Asked(settings={"QUEUE_HEAD_GRACE": "9"}))
        told = []
        async for frame in whatif.listen():
            told.append(json.loads(frame.decode().partition("data: ")[2]))
            if told[-1]["state"] != "running":
                return told
        raise AssertionError("it ended without a word")

    told = asyncio.run(go())
    assert told[0]["state"] == "running"
    assert told[-1]["state"] == "done"


def test_the_last_ones_are_kept_and_no_more() -> None:
    async def go() -> list[int]:
        whatif = WhatIf(Path("/nowhere"), limits=Limits(wall_s=20))
        for number in range(1, 8):
            whatif.start(Asked(settings={"QUEUE_HEAD_GRACE": str(number)}))
            await whatif.cancel()
        return [job.number for job in whatif.jobs]

    assert asyncio.run(go()) == [7, 6, 5, 4, 3]


def test_another_cannot_be_begun_while_one_runs() -> None:
    async def go() -> None:
        whatif = WhatIf(Path("/nowhere"))
        whatif.start(Asked(kind="tune"))
        with pytest.raises(Busy):
            whatif.start(Asked(kind="tune"))
        await whatif.cancel()

    asyncio.run(go())


def test_what_is_asked_becomes_a_command_line() -> None:
    log = Path("log")

    assert arguments(Asked(settings={"QUEUE_HEAD_GRACE": "30"}, since="2h", until="1790000000"), log) == [
        *("replay", "simulate", "log", "--json", "--progress", "--since=2h", "--until=1790000000"),
        "--set=QUEUE_HEAD_GRACE=30",
    ]
    sweep = arguments(Asked(kind="tune", settings={"replicas.a b": "1, 2"}), log)
    assert sweep[-2:] == ["--jobs=1", "--sweep=replicas.a b=1,2"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(), "nothing is changed"),
        (Asked(settings={"QUEUE_HEAD_GRACE": "1,2"}), "QUEUE_HEAD_GRACE: one value, please"),
        (Asked(settings={"--json": "1"}), "'--json' is no setting"),
        (Asked(settings={"QUEUE_HEAD_GRACE": "1\n2"}), "expected a value such as 30"),
        (Asked(settings={"QUEUE_HEAD_GRACE": "x" * 100}), "expected a value such as 30"),
        (Asked(kind="tune", settings={"QUEUE_HEAD_GRACE": "1,,2"}), "expected a value such as 30"),
        (Asked(settings={"NUM_GPUS": "2"}, since="$(reboot)"), "'$(reboot)' is no time"),
        (Asked(settings={f"KEY_{number}": "1" for number in range(30)}), "30 settings are too many"),
        (
            Asked(kind="tune", settings={"NUM_GPUS": ",".join("123456789"), "KEY": ",".join("123456789abc")}),
            "108 combinations",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_would_be_right(asked: Asked, words: str) -> None:
    with pytest.raises(Refused, match=re.escape(words)):
        arguments(asked, Path("log"))


def test_a_refusal_names_the_setting_that_is_wrong() -> None:
    """Among several, so that a form can show its message where it belongs."""
    asked = Asked(settings={"NUM_GPUS": "2", FIELDS[0].name: "1,2"})
    with pytest.raises(Refused) as refusal:
        arguments(asked, Path("log"))
    assert refusal.value.param == FIELDS[0].name
    with pytest.raises(Refused) as refusal:
        arguments(Asked(settings={"NUM_GPUS": "2"}, until="$"), Path("log"))
    assert refusal.value.param == "until"


def test_a_setting_that_the_command_finds_wrong_is_named(dashboard: Dashboard) -> None:
    async def go() -> dict[str, Any]:
        async with client_of(dashboard) as client:
            body = json.dumps({"settings": {"QUEUE_HEAD_GRACE": "soon"}})
            assert (await client.post("/dash/api/whatif", content=body, headers=JSON)).status_code == 202
            return await finished(client)

    told = asyncio.run(go())
    assert (told["state"], told["param"]) == ("failed", "QUEUE_HEAD_GRACE")
    assert "'soon' is not seconds" in told["error"]


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_simulator_s_error_is_called_by_its_size() -> None:
    def said(share: float) -> str:
        row = {"measure": "wait_mean_s", "recorded": 10.0, "simulated": 10 * (1 + share), "share": share}
        return str(trust([row])["words"])

    assert said(0.05).startswith("It is close")
    assert said(-0.2).startswith("It is rough")
    assert said(0.5).startswith("It is far off")
    assert trust([])["words"].startswith("Nothing was recorded to compare with")


def test_a_difference_says_whether_it_is_for_the_better() -> None:
    assert changed("wait_mean_s", 10, 5) == ("−50 %", True)
    assert changed("swaps", 10, 12) == ("+20 %", False)
    assert changed("finished", 10, 12) == ("+20 %", None)
    assert changed("swaps", 10, 10) == ("same", None)
    assert changed("overtakes", 0, 12) == ("from 0 to 12", False)
    assert changed("cached_share", 0, 0.25, "share") == ("from 0 to 25 %", None)
    assert changed("wait_mean_s", 10, 10.01) == ("+0.1 %", None)


def measures(**fields: float) -> dict[str, Any]:
    known = {name: 1.0 for name in Measures.__struct_fields__ if name != "wait_mean_by_model_s"}
    return {**known, "wait_mean_by_model_s": {"a": 1.0}, **fields}


def test_every_measure_of_the_simulator_that_has_words_is_one_that_it_gives() -> None:
    assert {name for name, *_ in MEASURES} <= set(Measures.__struct_fields__)


def test_the_result_of_traffic_that_was_never_recorded_is_shown_too() -> None:
    result = {"notes": [], "costs": "assumed", "errors": [], "sets": ["X=1"], "recorded": None}
    shown = simulated({**result, "baseline": measures(), "alternative": measures(wait_mean_s=0.5)})

    assert shown["sentence"].startswith("The mean wait would have been 500 ms instead of 1 s, with 1 swaps as before")
    assert [trace["name"] for trace in shown["waits"]["data"]] == ["simulated as it was", "simulated with the change"]


def test_of_many_trials_the_best_are_shown_and_always_those_that_matter() -> None:
    trials = [{"sets": [f"X={n}"], "best": n < 3, "measures": measures(wait_mean_s=float(n))} for n in range(60)]
    trials.append({"sets": [], "best": False, "measures": measures(wait_mean_s=99.0)})
    result = {"notes": [], "costs": "c", "errors": [], "trials": trials, "recommended": 1, "why": "w"}

    shown = tuned({**result, "config": {"A": 1}})

    assert len(shown["trials"]) == 41
    assert [trial["name"] for trial in shown["trials"] if trial["kind"]] == ["X=1", "as it is"]
    assert shown["left_out"] == 20
    assert shown["config"] == '{\n  "A": 1\n}'


def test_trials_with_the_same_figures_are_one_row() -> None:
    alike = [["X=1", "Y=2"], ["X=1"], []]
    trials = [{"sets": sets, "best": True, "measures": measures()} for sets in alike]
    trials.append({"sets": ["X=2"], "best": True, "measures": measures(wait_mean_s=0.5)})
    result = {"notes": [], "costs": "c", "errors": [], "trials": trials, "recommended": 3, "why": "it is shorter"}

    shown = tuned({**result, "config": {}})

    assert [(trial["name"], trial["kind"]) for trial in shown["trials"]] == [
        ("as it is, and 2 more alike", "current"),
        ("X=2", "chosen"),
    ]
    assert shown["sentence"] == "It is shorter."
