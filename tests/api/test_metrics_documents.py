"""docs/metrics.md says what `/metrics` has, and every query of examples/grafana.json asks for what is there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.api.exposition import Family, Histogram
from router.api.metrics import _log_bytes, families
from tests.api.world import World

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| `(\w+)` \| (counter|gauge|histogram) \|(.*?)\| (.+) \|")
Described = dict[str, tuple[str, tuple[str, ...], str]]


@pytest.fixture(scope="module")
def real() -> Described:
    found: list[Family | Histogram] = []

    async def story(world: World) -> None:
        found.extend(families(world.services, _log_bytes(world.config.log_dir)))

    World.run(story)
    return {each.name: (kind_of(each), each.labels, each.text) for each in found}


def kind_of(family: Family | Histogram) -> str:
    return "histogram" if isinstance(family, Histogram) else family.kind


def documented() -> Described:
    found: Described = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if match := ROW.fullmatch(line):
            assert match[1] not in found, f"{match[1]} stands there twice"
            found[match[1]] = (match[2], tuple(re.findall(r"`(\w+)`", match[3])), match[4])
    return found


def test_the_document_and_the_page_have_the_same_families(real: Described) -> None:
    """In the same order, with their kinds, labels and words."""
    assert list(documented().items()) == list(real.items())


def test_names_follow_the_conventions_of_prometheus(real: Described) -> None:
    """A counter ends in _total and nothing else does; units are base units, in full and last."""
    for name, (kind, _, _) in real.items():
        assert name.startswith(("llama_router_", "process_"))
        assert (kind == "counter") == name.endswith("_total"), name
        assert not re.search(r"_(us|ms|mib|mb|kb|percent|mw)(_|$)", name), name
        assert kind != "histogram" or name.endswith("_seconds"), name


# --- Grafana --------------------------------------------------------------------------------------------------------


def expressions(value: Any) -> Iterator[str]:
    """Every query in the dashboard, wherever it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "definition", "query") and isinstance(inner, str) and inner != "prometheus":
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


BOARD = json.loads((ROOT / "examples" / "grafana.json").read_text())
QUERIES = sorted(set(expressions(BOARD)))
WORDS = {"sum", "by", "le", "rate", "increase", "changes", "histogram_quantile", "label_values"}


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_names_metrics_and_labels_that_exist(query: str, real: Described) -> None:
    """Counters under rate or increase, histograms by their buckets, labels that the family has."""
    own = {name: (kind, {*labels}) for name, (kind, labels, _) in real.items()}
    for name, (kind, labels) in list(own.items()):
        if kind == "histogram":
            own[f"{name}_bucket"] = ("counter", labels | {"le"})
            del own[name]
    names = [name for name in re.findall(r"\w+", query) if name.startswith(("llama_router_", "process_"))]
    assert names, query
    known: set[str] = set()
    for name in names:
        assert name in own, f"{name} is not on the page"
        known |= own[name][1]
        if own[name][0] == "counter":
            assert re.search(rf"(rate|increase)\({name}\W", query), f"{name} only ever grows"
    asked = re.findall(r'(\w+)(?:=~|!~|!=|=)"', query) + re.findall(r"by \((\w+)\)", query)
    assert set(asked) <= known, query
    others = re.sub(r'"[^"]*"|\$\w+', "", query)
    assert set(re.findall(r"[a-z_]{2,}", others)) <= {*names, *asked, *WORDS, "model"}


def test_the_dashboard_shows_each_thing_that_is_asked_for() -> None:
    """Queue, waits, swaps, evictions, crashes, requests in flight, tokens and cached tokens; panels do not overlap."""
    text = " ".join(QUERIES)
    for word in ("queued", "queue_wait", "swaps", "evictions", "crashes", "in_flight", "completion", "cached", "gpu_"):
        assert f"llama_router_{word}" in text, word
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert panel["description"], panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
