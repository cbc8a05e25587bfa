"""Logs of pretended routers: the simulator's own world writes down what happens, as the router would.

So a log exists whose every cost is known, and what is fitted from it can be compared with the truth.
"""

from pathlib import Path
from typing import Any

import msgspec

from eventlog import events as e
from eventlog.settings import ModelSettings, SchedulerSettings
from eventlog.writer import LogWriter
from replay.costs import Costs
from replay.workload import Call, Workload
from replay.world import World
from router.scheduler import step


class RecordingWorld(World):
    """A world that keeps its facts and decisions, with everything that a real relay would have told."""

    def __init__(self, workload: Workload, costs: Costs, **options: Any) -> None:
        super().__init__(workload, costs, **options)
        self.record: list[e.Event] = []
        self.calls = {call.number: call for call in workload.calls}
        self.dispatched_us: dict[int, int] = {}

    def _do(self, fact: e.Fact) -> None:
        stamped = self._stamp(self._told(fact), 0)
        for decision in step(self.state, stamped):  # type: ignore[arg-type]
            self._stamp(msgspec.structs.replace(decision, at_us=self.now_us, run=1), stamped.seq)
            if isinstance(decision, e.RequestDispatched):
                self.dispatched_us[decision.rid] = self.now_us
            effect = self._effects.get(type(decision))
            if effect is not None:
                effect(decision)

    def _stamp(self, event: e.Event, cause: int) -> e.Event:
        stamped = msgspec.structs.replace(event, seq=len(self.record) + 1, cause=cause)
        self.record.append(stamped)
        return stamped

    def _call(self, rid: int) -> Call:
        return next(self.calls[number] for number, known in self._rids.items() if known == rid)

    def _told(self, fact: e.Fact) -> e.Fact:
        if isinstance(fact, e.RequestArrived):
            call = self._call(fact.rid)
            return msgspec.structs.replace(
                fact,
                stream=True,
                client=call.client,
                after_rid=self._rids.get(call.after, 0),
                prompt_bytes=call.prompt_tokens * 4,
                prompt_tokens=call.prompt_tokens + 3,  # an estimate
                prefix=[e.PrefixBlock(key, tokens * 4) for key, tokens in call.prefix],
            )
        if isinstance(fact, e.RequestFinished):
            call = self._call(fact.rid)
            outcome = self.outcomes[call.number - 1]
            begun_us = self.dispatched_us[fact.rid]
            return msgspec.structs.replace(
                fact,
                took_us=self.now_us - begun_us,
                first_token_us=outcome.first_us - begun_us,
                frames=call.output_tokens,
                prompt_tokens=call.prompt_tokens,
                cached_tokens=outcome.cached_tokens,
                completion_tokens=call.output_tokens,
            )
        if isinstance(fact, e.RequestCancelled):
            call = self._call(fact.rid)
            return msgspec.structs.replace(fact, frames=max(0, call.leaves_after_tokens))
        return fact

    def write(self, directory: Path, run: int = 1) -> Path:
        """Append the record to a log, as its run with this number."""
        with LogWriter.open(directory, durability="never") as writer:
            before = writer.next_seq - 1
            for event in self.record:
                cause = event.cause + before if event.cause else 0
                writer.append([msgspec.structs.replace(event, seq=event.seq + before, run=run, cause=cause)])
        return directory


def calls_of(*arrivals: tuple[float, str], prompt: int = 100, output: int = 10, **fields: Any) -> tuple[Call, ...]:
    """(second, model), in order."""
    return tuple(
        Call(number=n, at_us=round(at_s * 1e6), model=model, prompt_tokens=prompt, output_tokens=output, **fields)
        for n, (at_s, model) in enumerate(arrivals, 1)
    )


def workload_of(calls: tuple[Call, ...], *, gpus: int = 1, **settings: Any) -> Workload:
    """Models on GPU 0, or dealt over several in order of their names."""
    names = sorted({call.model for call in calls})
    models = {name: ModelSettings(gpus=(place % gpus,)) for place, name in enumerate(names)}
    return Workload(calls=calls, settings=SchedulerSettings(models=models, gpus=gpus, **settings))
