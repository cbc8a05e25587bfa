"""As many answers are made at one instant as there are slots, and together they are faster than one."""

from pathlib import Path

from tests.standin.ledger import polls
from tests.weights.conftest import Weights
from tests.weights.profile import Case, Profile
from tests.weights.rig import Stream, WeightsRouter, rate_of, recorded


def test_as_many_generate_at_one_instant_as_there_are_slots(where: Profile, weights: Weights, tmp_path: Path) -> None:
    """More users than slots ask one model at once. Read off the arrival of their tokens, and off the replica's /slots:
    a router that holds requests back and a replica that has fewer slots than asked for look different.
    """
    case = where.case("concurrent")
    with recorded(
        tmp_path,
        {"0": where.models(weights)[0]},
        parallel=case.slots,
        context=case.context,
        where=where,
    ) as router:
        before = alone(router, case, where, "first")
        users = [
            Stream(router, "0", case.prompt(f"Continue as user {n}."), tokens=case.tokens) for n in range(case.users)
        ]
        slots, busy = 0, 0
        for _ in polls(where.deadline_s, every_s=0.2):
            if all(user.is_over for user in users):
                break
            seen = router.call("GET", "/slots?model=0").json()
            slots = len(seen)
            busy = max(busy, sum(slot["is_processing"] for slot in seen))
        for user in users:
            user.wait_for_end(where.deadline_s)
        after = alone(router, case, where, "last")
    finished = router.events("RequestFinished")
    assert [event["completion_tokens"] for event in finished] == [case.tokens] * (case.users + 2)
    assert slots == case.slots
    at_once = min(case.users, case.slots)
    assert busy == at_once
    # Without its first and its last token, which a busy reader may have seen a moment late.
    spans = [(user.token_at[1], user.token_at[-2]) for user in users]
    assert max(sum(since <= instant <= until for since, until in spans) for instant, _ in spans) == at_once
    first_end = min(until for _, until in spans)
    together = rate_of(users, max(since for since, _ in spans if since < first_end), first_end)
    single = (rate_of([before]) + rate_of([after])) / 2
    assert together >= case.speedup_least * single, f"{together:.0f} tokens/s together, {single:.0f} alone"


def alone(router: WeightsRouter, case: Case, where: Profile, name: str) -> Stream:
    """A stream with the replica for itself."""
    stream = Stream(router, "0", case.prompt(f"Continue as the {name} user."), tokens=case.tokens)
    return stream.wait_for_end(where.deadline_s)
