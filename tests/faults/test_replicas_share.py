"""Several replicas of one model share its work evenly."""

import os
from collections import Counter
from pathlib import Path

from tests.faults.checks import routed, served_by
from tests.standin.fixtures import ROUTES, WHOLE_ROUTES, Model


def test_ten_requests_spread_over_two_replicas(tmp_path: Path) -> None:
    """One slot each: about five each, and never two on one while the other is idle."""
    with routed(tmp_path, [Model("a", replicas=2, tokens=5, gap_s=0.02)]) as router:
        routes = ROUTES + WHOLE_ROUTES
        calls = [router.post(path, "a", stream=True) for path in routes[:10]]
        assert {call.status for call in calls} == {200}
        assert all(call.read() for call in calls)
        router.ledger.wait_for_count(10, "request_end")
        shares = served_by(router)
        assert len(shares) == 2
        assert min(shares.values()) >= 4


def test_a_dead_replica_is_made_up_for_and_its_twin_serves_on(tmp_path: Path) -> None:
    """One of two dies while idle: the other answers at once, and the lost one comes back."""
    with routed(tmp_path, [Model("a", replicas=2, tokens=3)]) as router:
        assert router.chat("a").status == 200
        router.ledger.wait_for_count(2, "ready")
        os.kill(router.ledger.events("ready")[0]["pid"], 9)
        router.wait_event("ReplicaCrashed")
        assert [router.chat("a").status for _ in range(4)] == [200] * 4
        router.ledger.wait_for_count(3, "ready")
        calls = [router.chat("a", standin={"gap_s": 0.1}) for _ in range(2)]
        assert [call.status for call in calls] == [200, 200]
        last = Counter(line["pid"] for line in router.ledger.events("request_start")[-2:])
        assert len(last) == 2
