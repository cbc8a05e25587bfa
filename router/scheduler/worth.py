"""What a loaded model is worth, and what a swap costs those who wait: two policies, both off by default.

* `eviction=worth`: the model with the least (uses, halved every ten minutes) x (measured load time) leaves first: what
  is used often, or comes back slowly, stays.
* `head_release=accrued`: a blocked head is patient until the requests for its model have together waited as long as
  the swap would cost everybody: its load, once for the head and once for each request queued for a victim. That is
  the old rule of renting until the rent adds up to the price. Waiting accrues from when the head is blocked or, with
  `head_grace_from=arrival`, from each arrival.

Integers throughout. Only `fold` calls what writes; what is counted here is counted only while a policy asks for it.
"""

from collections.abc import Sequence

from router.scheduler.state import Lane, Model, Request, State, wanted_by

USE = 1 << 20
"""One use, undecayed."""
HALF_LIFE_US = 600_000_000


def counts_uses(state: State) -> bool:
    return state.settings.eviction == "worth"


def measures_loads(state: State) -> bool:
    return state.settings.eviction == "worth" or state.settings.head_release == "accrued"


def adds_up_waits(state: State) -> bool:
    return state.settings.head_release == "accrued"


# --- eviction by worth ----------------------------------------------------------------------------------------------


def count_use(model: Model, now_us: int) -> None:
    """One more dispatch."""
    model.uses = uses_at(model, now_us) + USE
    model.uses_at_us = now_us


def uses_at(model: Model, now_us: int) -> int:
    """Halved per half-life; in between along a straight line, so that no float is needed."""
    halvings, rest_us = divmod(max(0, now_us - model.uses_at_us), HALF_LIFE_US)
    uses = model.uses >> halvings
    return uses - uses * rest_us // (2 * HALF_LIFE_US)


def worth_of(state: State, model: Model) -> int:
    """Uses x seconds of load, in small units; who is worth least leaves first."""
    return uses_at(model, state.now_us) * model.load_us


# --- release by accrued waiting -------------------------------------------------------------------------------------


def begin_waits(state: State, lane: Lane, since_us: int) -> None:
    """The head of a lane is blocked from now on: so far, nobody in it has waited for its swap."""
    if adds_up_waits(state) and state.settings.head_grace_from == "head":
        lane.waits_since_us = since_us
        lane.waits_from_us = lane.length * since_us


def recount_waits(state: State) -> None:
    """The policy, or its clock, may have changed: the sums begin anew, or end."""
    for lane in state.lanes.values():
        rids = [rank[2] for ranks in lane.by_key.values() for rank in ranks]
        lane.waits_since_us = 0
        lane.waits_from_us = sum(state.requests[rid].arrived_us for rid in rids) if adds_up_waits(state) else 0


def released_us(state: State, model: Model, lane: Lane, request: Request, victims: Sequence[str]) -> int:
    """When the waiting of this lane has paid for its swap, if nothing else changes; now or before: it has."""
    load_us = model.load_us or max((state.models[name].load_us for name in victims), default=0)
    price_us = load_us * (1 + sum(wanted_by(state, name) for name in victims))
    accrued_us = lane.length * state.now_us - lane.waits_from_us
    if request.head_since_us < 0 and state.settings.head_grace_from == "head":
        accrued_us = 0
    # Each request of the lane adds a microsecond per microsecond.
    return state.now_us - (accrued_us - price_us) // lane.length
