"""The story of a crash, a failed load or a stall, from the log alone.

What ran, who was served, the tokens just before, the memory of its GPUs, its last lines; what the scheduler did then,
who was hurt and for how long, and who did it before. Counterparts: `incidents` lists what there is to tell, `suspects`
ranks who may be to blame, `postmortem_text` and `postmortem_html` show it, `bundle` makes it shareable.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from eventlog import events as e
from eventlog.errors import LogError
from eventlog.reader import read
from replay.incidents import Incident, incidents
from replay.lines import first_seq_before
from replay.past import state_at
from replay.suspects import Suspect, rank
from router.scheduler import State
from router.scheduler.state import gpus_of

BEFORE_US = 300_000_000
"""How far back memory and notes are looked at."""
TOKENS_US = 15_000_000
"""How far back the tokens of those who were served are looked at."""
LOSS_US = 30_000_000
"""A broken connection this long before belongs to the same death: the router may learn of it first."""
AFTER_US = 900_000_000
"""How far ahead the consequences are followed, if they have not ended before."""
NEXT_SHOWN = 200

Hurt = Literal["cut off", "sent again", "failed", "delayed", "refused"]
"""cut off: its answer had begun; sent again: it had not, and went back to its place; failed: nor had it, and it ended
with an error; delayed: it waited for the model; refused: it came while the model cooled down, or the router stopped."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A llama-server that was there."""

    replica: str
    phase: str
    gpus: tuple[int, ...]
    load: int
    slots: int


class Served(msgspec.Struct, kw_only=True):
    """A request that it was serving."""

    rid: int
    model: str = ""
    key: str = ""
    client: str = ""
    conversation: str = ""
    route: str = ""
    stream: bool = False
    attempt: int = 1
    since_us: int = 0
    """When it was dispatched to it."""
    prompt_tokens: int = 0
    """As estimated."""
    max_tokens: int = 0
    body_bytes: int = 0
    bytes_out: int = 0
    tokens: list[tuple[int, int]] = []
    """(at_us, frames since the one before) of its last seconds."""
    last_gap_us: int = -1


class MemorySample(msgspec.Struct, frozen=True, array_like=True):
    """Memory of one GPU at one moment, and what of it this replica held; -1 where unknown."""

    at_us: int
    used_mib: int
    total_mib: int
    own_mib: int
    utilisation_percent: int


class Note(msgspec.Struct, frozen=True):
    """A line that the router or the child had to say about it."""

    at_us: int
    text: str


class Next(msgspec.Struct, frozen=True):
    """Something that happened because of it."""

    at_us: int
    seq: int
    type: str
    what: dict[str, Any]


class Victim(msgspec.Struct, kw_only=True):
    """A request that had to suffer for it."""

    rid: int
    how: Hurt
    for_us: int
    """From the incident, or from its arrival if that was later, until it ran (again) or had its error, or until
    nothing more is known of it."""
    key: str = ""
    client: str = ""
    outcome: str = "open"
    """finished, cancelled, failed with its status, lost with the router; open, running: it waited or ran when the log,
    or what was looked at of it, ended."""
    code: str = ""


class Postmortem(msgspec.Struct, kw_only=True):
    """All of it."""

    incident: Incident
    of: int
    """Incidents in the log."""
    running: list[Process]
    served: list[Served]
    memory: dict[int, list[MemorySample]]
    """Per GPU of the replica."""
    notes: list[Note]
    next: list[Next]
    down_us: int
    """Until a replica of the model was ready again; 0 if another one was all the time, -1 if none was by the end."""
    hurt: list[Victim]
    earlier: list[Incident]
    """Of the same model, the last ones first."""
    suspects: list[Suspect]


def postmortem(path: Path, number: int) -> Postmortem:
    """The story of incident `number` (see `incidents`). Raises LogError if the log has no such incident."""
    found = incidents(path)
    if not 1 <= number <= len(found):
        raise LogError(f"the log at {path} has no crash {number}: it has {len(found)}; leave out --crash to list them")
    incident = found[number - 1]
    story = _Story(path, incident)
    story.read()
    earlier = [each for each in found[: number - 1] if each.model == incident.model]
    return Postmortem(
        incident=incident,
        of=len(found),
        running=story.running,
        served=story.served,
        memory=story.memory,
        notes=story.notes,
        next=story.next[:NEXT_SHOWN],
        down_us=story.down_us,
        hurt=sorted(story.hurt.values(), key=lambda each: each.rid),
        earlier=earlier[::-1][:20],
        suspects=rank(path, found, incident, story.memory),
    )


class _Story:
    def __init__(self, path: Path, incident: Incident) -> None:
        self.path = path
        self.incident = incident
        self.running: list[Process] = []
        self.served: list[Served] = []
        self.memory: dict[int, list[MemorySample]] = {}
        self.notes: list[Note] = []
        self.next: list[Next] = []
        self.hurt: dict[int, Victim] = {}
        self.down_us = -1
        self._waiting: set[int] = set()
        """Hurt requests that have not run or ended yet."""
        self._open: set[int] = set()
        """Hurt requests that have not ended yet."""
        self._hurt_since_us: dict[int, int] = {}

    def read(self) -> None:
        incident = self.incident
        began = self._moment()
        state = state_at(self.path, began - 1)
        if not incident.gpus and incident.replica in state.replicas:
            incident.gpus = gpus_of(state.replicas[incident.replica].mask)
        self._look_around(state)
        self._before(state)
        self._after(state, began)

    def _moment(self) -> int:
        """seq of the first sign: the fact itself, or a connection to that replica which broke just before."""
        incident = self.incident
        seq = incident.seq
        from_us = incident.at_us - LOSS_US
        first = first_seq_before(self.path, from_us)
        types = ("UpstreamLost", "ReplicaAnswered")
        for event in read(self.path, from_seq=first, to_seq=incident.seq, types=types):
            if getattr(event, "replica", "") != incident.replica or event.at_us < from_us:
                continue
            if isinstance(event, e.ReplicaAnswered):
                seq = incident.seq
            elif isinstance(event, e.UpstreamLost):
                seq = min(seq, event.seq)
        return seq

    def _look_around(self, state: State) -> None:
        for replica in state.replicas.values():
            gpus, slots = gpus_of(replica.mask), replica.slots
            self.running.append(
                Process(replica=replica.id, phase=replica.phase, gpus=gpus, load=replica.load, slots=slots)
            )
        replica_then = state.replicas.get(self.incident.replica)
        rids = [] if replica_then is None else list(replica_then.in_flight)
        rids = sorted({*rids, *self.incident.rids} & state.requests.keys())
        self.incident.rids = rids
        for rid in rids:
            request = state.requests[rid]
            self.served.append(
                Served(
                    rid=rid,
                    model=request.model,
                    key=request.key,
                    conversation=request.conversation,
                    attempt=request.attempt,
                )
            )

    # --- before -----------------------------------------------------------------------------------------------------

    def _before(self, state: State) -> None:
        incident = self.incident
        from_us = incident.at_us - BEFORE_US
        by_rid = {served.rid: served for served in self.served}
        oldest = min([from_us, *(state.requests[rid].arrived_us for rid in by_rid)])
        first = first_seq_before(self.path, oldest)
        for event in read(self.path, stream="all", from_seq=first, to_seq=incident.seq):
            match event:
                case e.RequestArrived() if event.rid in by_rid:
                    served = by_rid[event.rid]
                    served.client, served.route, served.stream = event.client, event.route, event.stream
                    served.prompt_tokens, served.max_tokens = event.prompt_tokens, event.max_tokens
                    served.body_bytes = event.body_bytes
                case e.RequestDispatched() if event.rid in by_rid and event.replica == incident.replica:
                    by_rid[event.rid].since_us = event.at_us
                case e.UpstreamLost() if event.rid in by_rid and event.replica == incident.replica:
                    by_rid[event.rid].bytes_out = event.bytes_out
                case e.TokensStreamed() if event.rid in by_rid and event.at_us >= incident.at_us - TOKENS_US:
                    by_rid[event.rid].tokens.append((event.at_us, len(event.gaps_us)))
                    by_rid[event.rid].last_gap_us = event.gaps_us[-1] if event.gaps_us else -1
                case e.GpuSampled() if event.gpu in incident.gpus and event.at_us >= from_us:
                    self.memory.setdefault(event.gpu, []).append(self._sample(event))
                case e.ReplicaNote() | e.LogLine() if event.replica == incident.replica:
                    self.notes.append(Note(event.at_us, event.text))
                case e.LogLine() if event.at_us >= from_us and not event.replica:
                    self.notes.append(Note(event.at_us, event.text))

    def _sample(self, event: e.GpuSampled) -> MemorySample:
        own_mib = event.processes.get(self.incident.replica, -1)
        return MemorySample(event.at_us, event.used_mib, event.total_mib, own_mib, event.utilisation_percent)

    # --- after ------------------------------------------------------------------------------------------------------

    def _after(self, state: State, began: int) -> None:
        incident = self.incident
        if any(
            replica.model == incident.model and replica.id != incident.replica and replica.phase == "ready"
            for replica in state.replicas.values()
        ):
            self.down_us = 0
        for request in state.requests.values():
            if request.model == incident.model and not request.replica and not request.op and self.down_us:
                self._is_hurt(request.rid, "delayed", request.key, arrived_us=request.arrived_us)
        for served in self.served:
            self._is_hurt(served.rid, "cut off", served.key)
        until_us = last_us = incident.at_us
        until_us += AFTER_US
        is_over = False
        for event in read(self.path, from_seq=began):
            if event.at_us > until_us:
                last_us = until_us
                break
            if isinstance(event, e.RouterStarted):
                self._lose_the_rest()
                break
            last_us = max(last_us, event.at_us)
            if is_over:
                self._note_end(event)
            else:
                self._follow(event)
            if event.seq > incident.seq and not self._waiting and self.down_us >= 0 and not event.cause:
                is_over = True  # of those who run again, only the end is still to be told
            if is_over and not self._open:
                break
        for rid in sorted(self._waiting):
            self._relieve(rid, last_us)

    def _is_hurt(self, rid: int, how: Hurt, key: str, client: str = "", arrived_us: int = 0) -> None:
        self.hurt[rid] = Victim(rid=rid, how=how, for_us=-1, key=key, client=client)
        self._hurt_since_us[rid] = max(self.incident.at_us, arrived_us)
        self._waiting.add(rid)
        self._open.add(rid)

    def _follow(self, event: e.Event) -> None:
        incident = self.incident
        rid = getattr(event, "rid", 0)
        about_model = incident.model in (getattr(event, "model", ""), getattr(event, "target", ""))
        is_next = about_model or getattr(event, "replica", "") == incident.replica or event.cause == incident.seq
        match event:
            case e.RequestArrived():
                if event.model == incident.model and self.down_us < 0:
                    self._is_hurt(rid, "delayed", event.key, event.client, event.arrived_us)
                is_next = False
            case e.RequestHeld() | e.TimerSet() | e.TimerCancelled():
                is_next = False
            case e.ReplicaReady():
                is_next = self._is_of_model(event.replica)
                if is_next and self.down_us < 0:
                    self.down_us = max(0, event.at_us - incident.at_us)
            case e.ReplicaSpawned():
                is_next = False
            case e.RequestDispatched():
                is_next = rid in self._waiting
                self._relieve(rid, event.at_us)
                if is_next:
                    self.hurt[rid].outcome = "running"
            case e.RequestRequeued() if rid in self.hurt:
                is_next = True
                self.hurt[rid].how = "sent again"
                self.hurt[rid].outcome = "open"
                self._waiting.add(rid)
            case e.RequestFailed() if rid in self.hurt:
                is_next = True
                victim = self.hurt[rid]
                if victim.how == "delayed":
                    victim.how = "refused" if event.code == "model_cooling_down" else "failed"
                elif victim.how == "cut off" and not event.begun:
                    victim.how = "failed"
            case e.RequestRejected() if rid in self.hurt:
                is_next = True
                self.hurt[rid].how = "refused"
            case e.RequestFinished() | e.RequestCancelled() if rid in self.hurt:
                is_next = rid in self._waiting
        self._note_end(event)
        if (is_next and event.seq >= incident.seq) or (is_next and rid in self.hurt):
            self._note_next(event)

    def _note_end(self, event: e.Event) -> None:
        """What became of those who were hurt."""
        rid = getattr(event, "rid", 0)
        if rid not in self._open:
            return
        code = ""
        match event:
            case e.RequestFailed():
                outcome, code = f"failed {event.status}", event.code
            case e.RequestRejected():
                outcome, code = f"rejected {event.status}", event.code
            case e.RequestFinished():
                outcome = "finished" if event.status < 400 else f"finished {event.status}"
            case e.RequestCancelled():
                outcome = "cancelled"
            case _:
                return
        self._relieve(rid, event.at_us)
        self._open.discard(rid)
        self.hurt[rid].outcome, self.hurt[rid].code = outcome, code

    def _lose_the_rest(self) -> None:
        """The router itself ended under them."""
        for rid in self._open:
            self.hurt[rid].outcome = "lost"

    def _is_of_model(self, replica: str) -> bool:
        return replica.rpartition("#")[0] == self.incident.model

    def _relieve(self, rid: int, at_us: int) -> None:
        if rid in self._waiting:
            self._waiting.discard(rid)
            self.hurt[rid].for_us = max(0, at_us - self._hurt_since_us[rid])

    def _note_next(self, event: e.Event) -> None:
        fields: dict[str, Any] = msgspec.to_builtins(event)
        what = {name: value for name, value in fields.items() if name not in ("type", "seq", "at_us", "run", "cause")}
        what.pop("last_lines", None)
        self.next.append(Next(event.at_us, event.seq, type(event).__name__, what))
