"""Prove that a log's decisions follow from its facts: every one is made again and compared, byte for byte.

    facts --step--> decisions == recorded decisions?       state == recorded checkpoint?

Begins at the first checkpoint or start of a run that the log has, so a log that retention has cut is proved from there
on, and goes on over the runs that follow. Under the policy that it was recorded with every decision must be the same:
the first that is not ends the proof. Under another policy differences are counted; from the first one on the state
follows the record, so that each is a difference of its own and not a consequence of the one before.

Counterparts: `eventlog.verify` proves that the bytes are those that were written, `past` folds without deciding.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from eventlog import codec
from eventlog.codec import TAIL, UnknownEvent
from eventlog.events import (
    DECISIONS,
    FACTS,
    OBSERVATIONS,
    Decision,
    Event,
    Fact,
    LogTruncated,
    RouterStarted,
    SegmentOpened,
)
from eventlog.segments import Segment
from replay import past
from replay.differences import Difference, Kind, as_fields, compare
from replay.lines import blocks, type_of
from router import scheduler
from router.scheduler import POLICY_VERSION, State, carried_from, digest, dump, fold, restore, settled

DIGEST_BYTES = 16

_FACT, _DECISION, _OBSERVATION, _HEADER, _TRUNCATED = range(5)

_KINDS: dict[bytes, int] = {
    **{kind.__name__.encode(): _FACT for kind in FACTS},
    **{kind.__name__.encode(): _DECISION for kind in DECISIONS},
    **{kind.__name__.encode(): _OBSERVATION for kind in OBSERVATIONS},
    SegmentOpened.__name__.encode(): _HEADER,
    LogTruncated.__name__.encode(): _TRUNCATED,
}

_encode = msgspec.json.Encoder().encode
_stamp = msgspec.structs.replace


class Checkpoint(msgspec.Struct, frozen=True):
    """A state that the log recorded, and whether the recomputed one is the same; the first one is taken on trust."""

    seq: int
    digest: str
    same: bool


class Verified(msgspec.Struct, kw_only=True):
    """What was proved, and what was not."""

    ok: bool = True
    """No difference, or only such as another policy may make."""
    facts: int = 0
    decisions: int = 0
    runs: list[int] = []
    first_seq: int = 0
    last_seq: int = 0
    skipped: int = 0
    """Events before the first checkpoint or start of a run, or behind a hole: nothing is known to compare them with."""
    unknown: int = 0
    """Events of types, or with values, that this version does not know."""
    interrupted: list[int] = []
    """Facts at the end of a run whose decisions a crash kept from the log, or some of them."""
    checkpoints: list[Checkpoint] = []
    policy_version: int = POLICY_VERSION
    recorded_policies: list[int | None] = []
    """By run; None where the log does not say."""
    differences: int = 0
    first: Difference | None = None
    decisions_digest: str = ""
    """Chained over all recomputed decisions: equal on every machine, for every Python and hash seed."""
    states_digest: str = ""
    """Chained over the state at each checkpoint and at the end."""
    seconds: float = 0.0

    @property
    def events(self) -> int:
        """Facts and decisions that were compared."""
        return self.facts + self.decisions


def verify(path: Path, *, strict: bool = False, progress: Callable[[Segment], None] = lambda segment: None) -> Verified:
    """Verify a log's directory, or one segment. `strict`: differences under another policy are not accepted either.

    Raises LogError where there is no log, and LogDamaged.
    """
    return _Proof(path, strict).run(progress)


class _Over(Exception):
    """The proof has failed; the rest would say nothing new."""


class _Proof:
    def __init__(self, path: Path, strict: bool) -> None:
        self.path = path
        self.strict = strict
        self.result = Verified()
        self.state: State | None = None
        self.policy: int | None = None
        self.fact = Fact()
        """The last one."""
        self.expected: list[bytes] = []
        """Its decisions as lines, without their checksums."""
        self.met = 0
        """How many of those the log has confirmed."""
        self.follows_record = False
        """After a difference: the state is what was recorded, and each decision is compared on its own."""
        self.last_seq = 0
        self._decisions = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._states = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def run(self, progress: Callable[[Segment], None]) -> Verified:
        began = time.perf_counter()
        result = self.result
        try:
            for lines, schema in blocks(self.path, progress, unbroken=True):
                self._take(lines, schema)
            self._end_of_log()
        except _Over:
            pass
        if self.state is not None and not self.follows_record:
            self._states.update(digest(self.state).encode())
        result.last_seq = self.last_seq
        result.decisions_digest = self._decisions.hexdigest()
        result.states_digest = self._states.hexdigest()
        result.seconds = time.perf_counter() - began
        return result

    def _take(self, lines: list[bytes], schema: int) -> None:
        kinds = [_KINDS.get(type_of(line), -1) for line in lines]
        fact_lines = [line for line, kind in zip(lines, kinds, strict=True) if kind == _FACT]
        facts = iter(codec.decode_lines(fact_lines, schema))
        for line, kind in zip(lines, kinds, strict=True):
            if kind == _DECISION:
                self._decision(line, schema)
            elif kind == _FACT:
                self._fact(next(facts))
            elif kind == _HEADER:
                self._header(line, schema)
            elif kind == _TRUNCATED:
                self._truncated(line, schema)
            elif kind != _OBSERVATION:
                self.result.unknown += 1

    # --- facts ------------------------------------------------------------------------------------------------------

    def _fact(self, fact: Event) -> None:
        if isinstance(fact, UnknownEvent):
            self.result.unknown += 1
            return
        assert isinstance(fact, Fact)
        if type(fact) is RouterStarted:
            self._begin_run(fact)
        elif self.state is not None:
            self._settle(fact.seq)
        if self.state is None:
            self.result.skipped += 1
            return
        self.fact = fact
        self.last_seq = fact.seq
        self.result.facts += 1
        if self.follows_record:
            self._fold(fact)
        else:
            self._step(fact)

    def _step(self, fact: Fact) -> None:
        assert self.state is not None
        try:
            decisions = scheduler.step(self.state, fact)
        except Exception as error:
            self._broke(fact, error)
            return
        seq, at_us, run = fact.seq, fact.at_us, fact.run
        self.expected = [
            _encode(_stamp(decision, seq=seq + place, at_us=at_us, run=run, cause=seq))[:-1]
            for place, decision in enumerate(decisions, 1)
        ]
        self.met = 0

    def _begin_run(self, started: RouterStarted) -> None:
        result = self.result
        if self.state is not None:
            if not started.carried.clean and self._is_interrupted():
                result.interrupted.append(self.fact.seq)
            else:
                self._settle(started.seq)
                self._compare_carried(started)
        self.state = State()
        result.first_seq = result.first_seq or started.seq
        self.policy = started.policy_version or None
        self.follows_record = False
        self.expected, self.met = [], 0
        result.runs.append(started.run)
        result.recorded_policies.append(self.policy)

    def _compare_carried(self, started: RouterStarted) -> None:
        """What the run began with is what the one before it left."""
        if self.state is None:
            return
        ours = carried_from(self.state)
        if ours != started.carried:
            self._differs("carried", started, recorded=started.carried, recomputed=ours)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _decision(self, line: bytes, schema: int) -> None:
        if self.state is None:
            self.result.skipped += 1
            return
        if self.follows_record:
            self._compare_alone(line, schema)
            return
        met = self.met
        if met < len(self.expected) and line[:-TAIL] == self.expected[met]:
            self.met = met + 1
            self._decisions.update(self.expected[met])
            self.result.decisions += 1
            return
        self._look_closer(line, schema)

    def _look_closer(self, line: bytes, schema: int) -> None:
        """The bytes are not the same; the decision still is if only an older schema wrote it otherwise."""
        recorded = codec.decode(line, schema)
        expected = self.expected[self.met] if self.met < len(self.expected) else None
        if expected is not None and schema != codec.SCHEMA and _encode(recorded)[:-1] == expected:
            self.met += 1
            self._decisions.update(expected)
            self.result.decisions += 1
            self.last_seq = recorded.seq
            return
        kind: Kind = "extra" if expected is None else "other"
        ours = None if expected is None else codec.decode(expected + b"}")
        self.result.decisions += 1
        self.last_seq = recorded.seq
        self._follow_the_record(recorded.seq)
        self._differs(kind, recorded, recorded=recorded, recomputed=ours)
        self._fold(recorded)

    def _compare_alone(self, line: bytes, schema: int) -> None:
        """One decision against the state that the record gives."""
        recorded = codec.decode(line, schema)
        if isinstance(recorded, UnknownEvent):
            self.result.unknown += 1
            return
        ours = self._next_decision(recorded.seq)
        if self.state is None:
            return
        if ours != recorded:
            kind: Kind = "extra" if ours is None else "other"
            self._differs(kind, recorded, recorded=recorded, recomputed=ours)
        if ours is not None:
            self._decisions.update(_encode(ours)[:-1])
        self.result.decisions += 1
        self.last_seq = recorded.seq
        self._fold(recorded)

    def _next_decision(self, seq: int) -> Decision | None:
        """What would be decided now, stamped; `self.state` is given up if the rules break."""
        assert self.state is not None
        try:
            ours = scheduler.next_decision(self.state)
        except Exception as error:
            self._broke(self.fact, error)
            return None
        fact = self.fact
        return None if ours is None else _stamp(ours, seq=seq, at_us=fact.at_us, run=fact.run, cause=fact.seq)

    def _settle(self, seq: int) -> None:
        """Before another fact: all that the last one led to must be in the log."""
        if self.follows_record:
            ours = self._next_decision(self.last_seq + 1)
            if ours is not None:
                self._differs("missing", self.fact, recomputed=ours)
            return
        if self.met == len(self.expected):
            self.last_seq = self.fact.seq + self.met
            return
        missing = codec.decode(self.expected[self.met] + b"}")
        self._follow_the_record(seq)
        self._differs("missing", self.fact, recomputed=missing)

    # --- checkpoints and what the log says of itself ----------------------------------------------------------------

    def _header(self, line: bytes, schema: int) -> None:
        header = codec.decode(line, schema)
        if not isinstance(header, SegmentOpened) or not header.state:
            return
        if self.state is None:
            self.state = restore(header.state)
            self.policy = self.state.policy_version or None
            self.result.first_seq = self.result.first_seq or header.seq
            self.result.runs.append(header.run)
            self.result.recorded_policies.append(self.policy)
            self._note_checkpoint(header.seq, self.state, same=True)
            return
        self._settle(header.seq)
        # Read and written again, a checkpoint of an older version has the fields that were added since.
        recorded = restore(header.state)
        same = digest(recorded) == digest(self.state)
        self._note_checkpoint(header.seq, self.state, same=same)
        if not same:
            self._differs("checkpoint", header, recorded=settled(recorded), recomputed=settled(self.state))
            self.state = recorded
        self.follows_record = False
        self.expected, self.met = [], 0

    def _note_checkpoint(self, seq: int, state: State, *, same: bool) -> None:
        hexdigest = digest(state)
        self._states.update(hexdigest.encode())
        self.result.checkpoints.append(Checkpoint(seq, hexdigest, same))

    def _truncated(self, line: bytes, schema: int) -> None:
        """A repair that left a hole: what follows begins with a checkpoint or a run."""
        truncated = codec.decode(line, schema)
        if isinstance(truncated, LogTruncated) and truncated.next_chain and self.state is not None:
            if self._is_interrupted():
                self.result.interrupted.append(self.fact.seq)
            self._lose_the_state()

    def _end_of_log(self) -> None:
        if self.state is None:
            return
        if self._is_interrupted():
            self.result.interrupted.append(self.fact.seq)
            self.last_seq = self.fact.seq + self.met
        else:
            self._settle(self.last_seq + 1)

    def _is_interrupted(self) -> bool:
        """The last fact is there, its decisions are not, or not all."""
        if self.follows_record:
            return self.state is not None and self._next_decision(self.last_seq + 1) is not None
        return self.met < len(self.expected)

    # --- differences ------------------------------------------------------------------------------------------------

    def _differs(self, kind: Kind, at: Event, *, recorded: Any = None, recomputed: Any = None, error: str = "") -> None:
        """Count a difference; the first one is kept, with the state as it is now."""
        result = self.result
        result.differences += 1
        policy = self.policy
        is_accepted = policy is not None and policy != POLICY_VERSION and not self.strict
        if result.first is None or (result.ok and not is_accepted):
            theirs, ours = _plain(recorded), _plain(recomputed)
            result.first = Difference(
                seq=at.seq,
                at_us=at.at_us,
                run=at.run,
                kind=kind,
                cause=at.cause,
                recorded=theirs,
                recomputed=ours,
                fields=compare(theirs, ours) if theirs is not None and ours is not None else [],
                policy_version=policy,
                error=error,
                state=None if self.state is None else restore(dump(self.state)),
            )
        result.ok = result.ok and is_accepted
        if not result.ok and (policy is None or policy == POLICY_VERSION):
            raise _Over

    def _broke(self, fact: Fact, error: Exception) -> None:
        """The rules or `fold` raised. What comes next is compared again from the next checkpoint or run on."""
        self._differs("broken", fact, recorded=fact, error=f"{type(error).__name__}: {error}")
        self._lose_the_state()

    def _follow_the_record(self, seq: int) -> None:
        """Go on with the state that the log gives, as it was before `seq`."""
        self.follows_record = True
        self.expected, self.met = [], 0
        self.state = past.state_at(self.path, seq - 1)

    def _fold(self, event: Event) -> None:
        """Take in what was recorded, which other rules may find impossible."""
        assert self.state is not None
        try:
            fold(self.state, event)
        except Exception as error:
            self._broke(self.fact, error)

    def _lose_the_state(self) -> None:
        self.state = None
        self.follows_record = False
        self.expected, self.met = [], 0


def _plain(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, Event):
        return as_fields(value)
    fields: dict[str, Any] = msgspec.json.decode(_encode(value))
    return fields
