"""Which events somebody asked for: by run, time, type, request, model or replica.

An event belongs to a model if it names it, or a request for it, or a replica of it; which requests and replicas those
are is learned from the events that go by and, where retention has cut the log, from its checkpoints. So a `Filter` has
to see a log from its beginning.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from eventlog.events import Event, LoadWished, ReplicaSpawnOrdered, RequestArrived, SegmentOpened


class _OfModel(msgspec.Struct):
    model: str


class _Known(msgspec.Struct):
    """What a checkpoint says of who belongs to which model; all else in it is the scheduler's business."""

    requests: dict[int, _OfModel] = {}
    replicas: dict[str, _OfModel] = {}


@dataclass
class Filter:
    """All conditions that are given have to hold. Times are microseconds since the epoch, `since_us` included."""

    runs: Collection[int] = ()
    since_us: int | None = None
    until_us: int | None = None
    types: Collection[str] = ()
    requests: Collection[int] = ()
    models: Collection[str] = ()
    replicas: Collection[str] = ()
    _model_of_request: dict[int, str] = field(default_factory=dict)
    _model_of_replica: dict[str, str] = field(default_factory=dict)

    def wants(self, event: Event) -> bool:
        """Whether the event is one of those asked for."""
        if self.models:
            self._learn(event)
        return (
            (not self.runs or event.run in self.runs)
            and (self.since_us is None or event.at_us >= self.since_us)
            and (self.until_us is None or event.at_us < self.until_us)
            and (not self.types or _type_of(event) in self.types)
            and (not self.requests or not _requests(event).isdisjoint(self.requests))
            and (not self.replicas or getattr(event, "replica", None) in self.replicas)
            and (not self.models or not self._models(event).isdisjoint(self.models))
        )

    def _learn(self, event: Event) -> None:
        if isinstance(event, RequestArrived | LoadWished):
            self._model_of_request[event.rid] = event.model
        elif isinstance(event, ReplicaSpawnOrdered):
            self._model_of_replica[event.replica] = event.model
        elif isinstance(event, SegmentOpened) and event.state:
            with suppress(msgspec.ValidationError):  # of another version
                known = msgspec.json.decode(event.state, type=_Known)
                self._model_of_request |= {rid: request.model for rid, request in known.requests.items()}
                self._model_of_replica |= {name: replica.model for name, replica in known.replicas.items()}

    def _models(self, event: Event) -> set[str]:
        models = {getattr(event, name, "") for name in ("model", "target")}
        victims = getattr(event, "victims", ())
        models |= {victim if isinstance(victim, str) else victim.model for victim in victims}
        models.add(self._model_of_replica.get(getattr(event, "replica", ""), ""))
        models |= {self._model_of_request.get(rid, "") for rid in _requests(event)}
        return models - {""}


def _type_of(event: Event) -> str:
    """The first key of its line."""
    return getattr(event, "type", type(event).__name__)


def _requests(event: Event) -> set[int]:
    """The requests that an event is about; 0 is none."""
    return {getattr(event, "rid", 0), getattr(event, "cause_rid", 0), *getattr(event, "rids", ())} - {0}
