"""The pretend world with prompt caches: slots hold conversations, files are written and read, well or badly, by a seed.

What a llama-server and the keeper of caches do in earnest: a request takes the slot that holds most of its prompt, what
a slot holds is told a little later (or never, or wrongly), every order of a save or a restore is answered once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import msgspec

from eventlog import events as e
from eventlog.settings import SchedulerSettings
from tests.scheduler.chaos import kept
from tests.scheduler.shell import SECOND
from tests.scheduler.test_world import world_of
from tests.scheduler.world import Manners, World

TURN_TOKENS = 700
TOKEN_US = 400


@dataclass(frozen=True)
class CacheManners:
    """How often what goes wrong, as probabilities; times as (least, most) seconds."""

    save_s: tuple[float, float] = (0.01, 0.3)
    restore_s: tuple[float, float] = (0.01, 0.2)
    fails: float = 0.0
    slow: float = 0.0
    """It takes longer than anybody waits."""
    hangs: float = 0.0
    """It is given up some time after nobody waits for it any more, or when its process is gone."""
    kills: float = 0.0
    """The process dies of it."""
    lies: float = 0.0
    """A save says that all is well, and the file is good for nothing; a restore brings nothing."""
    untold: float = 0.0
    """What a slot holds is not told, or of the wrong slot."""


class CacheWorld(World):
    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        seed: int = 0,
        manners: Manners | None = None,
        cache_manners: CacheManners | None = None,
        strict: bool = False,
    ) -> None:
        self.cache_manners = cache_manners or CacheManners()
        self.slots: dict[str, dict[int, tuple[str, int]]] = {}
        """Replica to what its slots really hold: conversation and tokens."""
        self.at: dict[int, tuple[int, int]] = {}
        """rid to its slot and the tokens that were cached there."""
        self.asked: dict[int, e.RequestArrived] = {}
        self.good: dict[tuple[str, str], int] = {}
        """Files that hold what they should: (model, conversation) to tokens."""
        self.prompts: dict[str, int] = {}
        """Conversation to its turns so far."""
        super().__init__(settings, seed=seed, manners=manners, strict=strict)

    def turn(self, at_s: float, model: str, conversation: str, **fields: object) -> int:
        """The next turn of a conversation arrives."""
        count = self.prompts[conversation] = self.prompts.get(conversation, 0) + 1
        prefix = [e.PrefixBlock(f"{conversation}{nth}", 4 * TURN_TOKENS * (nth + 1)) for nth in range(count)]
        return self.arrives(at_s, model, conversation=conversation, prefix=prefix, **fields)  # type: ignore[arg-type]

    # --- requests ---

    def _note_fact(self, fact: e.Event) -> None:
        super()._note_fact(fact)
        if isinstance(fact, e.RequestArrived):
            self.asked[fact.rid] = fact

    def _serve(self, order: e.RequestDispatched) -> None:
        rid, replica = order.rid, order.replica
        asked = self.asked[rid]
        if asked.work == "generation" and asked.conversation:
            slots = self.slots.setdefault(replica, {})
            busy = {self.at[other][0] for other, where in self.running.items() if where == replica and other in self.at}
            process = self.processes[replica]
            free = [slot for slot in range(process.slots) if slot not in busy] or [0]
            slot = next((slot for slot in free if slots.get(slot, ("", 0))[0] == asked.conversation), free[0])
            held = slots.get(slot, ("", 0))
            tokens = TURN_TOKENS * max(1, len(asked.prefix))
            cached = min(held[1], tokens - 1) if held[0] == asked.conversation else 0
            slots[slot] = (asked.conversation, tokens)
            self.at[rid] = (slot, cached)
            if self.chance(self.cache_manners.untold, "untold", rid):
                slot = self._random("wrong", rid).randrange(process.slots)
            told = e.SlotHolds(replica=replica, slot=slot, conversation=asked.conversation, tokens=tokens, rid=rid)
            if not self.chance(self.cache_manners.untold, "never", rid):
                self.later(self.between((0.01, 0.5), "told", rid), lambda: self._if_alive(replica, told))
        super()._serve(order)

    def _finish(self, rid: int, replica: str) -> None:
        if rid not in self.at:
            super()._finish(rid, replica)
        elif self.running.get(rid) == replica and replica in self.processes:
            cached = self.at[rid][1]
            read = TURN_TOKENS * max(1, len(self.asked[rid].prefix)) - cached
            timing = e.SlotTiming(cache_n=cached, prompt_n=read, prompt_us=read * TOKEN_US, predicted_n=20)
            self._do(e.RequestFinished(rid=rid, replica=replica, timing=timing))

    # --- files ---

    def _carry_out(self, decision: e.Decision) -> None:
        match decision:
            case e.CacheSaveOrdered():
                self._move("save", decision)
            case e.CacheRestoreOrdered():
                self._move("restore", decision)
            case _:
                super()._carry_out(decision)

    def _move(self, what: str, order: e.CacheSaveOrdered | e.CacheRestoreOrdered) -> None:
        manners, key = self.cache_manners, (what, order.replica, order.slot, order.conversation)
        seconds = self.between(manners.save_s if what == "save" else manners.restore_s, *key)
        if self.chance(manners.slow, *key, "slow"):
            seconds += 2 * self.state.settings.keep_hold_us / SECOND
        if self.chance(manners.kills, *key, "kills"):
            crash = e.ReplicaCrashed(replica=order.replica, cause_of_exit="signal", signal=11)
            self.later(seconds, lambda: self._process_ends(crash))
        elif self.chance(manners.hangs, *key, "hangs"):
            given_up_s = 2 * order.limit_us / SECOND + 0.1
            self.later(given_up_s, lambda: self._answer(what, order, 0, fails=True))
        else:
            self.later(seconds, lambda: self._answer(what, order, round(seconds * SECOND)))

    def _answer(
        self, what: str, order: e.CacheSaveOrdered | e.CacheRestoreOrdered, took_us: int, *, fails: bool = False
    ) -> None:
        """Unless its process ended meanwhile, which was its answer."""
        if (order.replica, order.slot) not in (self.open_saves if what == "save" else self.open_restores):
            return
        manners, key = self.cache_manners, (what, order.replica, order.slot, order.conversation)
        named = {"replica": order.replica, "slot": order.slot, "conversation": order.conversation}
        file = (self.models[order.replica], order.conversation)
        fails, lies = fails or self.chance(manners.fails, *key, "fails"), self.chance(manners.lies, *key, "lies")
        if what == "save":
            held = self.slots.get(order.replica, {}).get(order.slot, ("", 0))
            if fails or held[0] != order.conversation:
                self._do(e.CacheSaveFailed(**named, reason="as drawn"))  # type: ignore[arg-type]
                return
            self.good[file] = 0 if lies else held[1]
            self._do(e.CacheSaved(**named, tokens=held[1], bytes=held[1] * 1000, took_us=took_us))  # type: ignore[arg-type]
        elif fails:
            self._do(e.CacheRestoreFailed(**named, reason="as drawn"))  # type: ignore[arg-type]
        else:
            tokens = 0 if lies else self.good.get(file, 0)
            slots = self.slots.setdefault(order.replica, {})
            if order.slot not in {self.at[rid][0] for rid, where in self.running.items() if where == order.replica}:
                slots[order.slot] = (order.conversation, tokens)
            self._do(e.CacheRestored(**named, tokens=order.tokens, bytes=1, took_us=took_us))  # type: ignore[arg-type]

    def _process_ends(self, fact: e.ReplicaStopped | e.ReplicaCrashed) -> None:
        """What it was still to answer is answered by its end, before or after that is known."""
        replica = fact.replica
        if replica not in self.processes:
            return

        def answer() -> None:
            for (where, slot), conversation in list(self.open_saves.items()):
                if where == replica:
                    self._do(e.CacheSaveFailed(**gone(slot, conversation)))
            for (where, slot), (conversation, _) in list(self.open_restores.items()):
                if where == replica:
                    self._do(e.CacheRestoreFailed(**gone(slot, conversation)))

        def gone(slot: int, conversation: str) -> dict[str, Any]:
            return {
                "replica": replica,
                "slot": slot,
                "conversation": conversation,
                "reason": "it is gone",
                "broke": True,
            }

        self.slots.pop(replica, None)
        if self.chance(0.5, "answers first", replica):
            answer()
        super()._process_ends(fact)
        self.later(0.1, answer)


def cache_world_of(seed: int, *, faults: bool = True, engine: str = "") -> CacheWorld:
    """A world of `test_world` in which conversations come back and prompt caches are kept, some badly."""
    plain = world_of(seed, faults=faults, engine=engine)
    dice = random.Random(f"caches {seed}")
    settings = kept(plain.settings, dice)
    rare = 0.15 if faults else 0.0
    world = CacheWorld(
        settings,
        seed=seed,
        manners=plain.manners,
        cache_manners=CacheManners(
            fails=rare, slow=rare, hangs=rare / 2, kills=rare / 3, lies=rare, untold=rare if faults else 0.0
        ),
    )
    models, at_s = sorted(settings.models), 0.0
    for _ in range(40):
        at_s += dice.expovariate(1 / dice.choice([0.3, 3.0]))
        conversation = dice.choice("wxyz")
        model = models[("wxyz".index(conversation) + (dice.random() < 0.2)) % min(3, len(models))]
        leaves = dice.choice([None] * 8 + [0.0, 2.0]) if faults else None
        world.turn(at_s, model, conversation, leaves_after_s=leaves, slots_wanted=dice.choice([1] * 9 + [2]))
    for _ in range(dice.randrange(4) if faults else 0):
        model, op, at = dice.choice(models), world.next_op(), dice.uniform(0, at_s)
        calls: list[e.Fact] = [
            e.LoadWished(op=op, rid=world.next_rid(), model=model),
            e.AdminUnload(op=op, model=model, force=dice.random() < 0.3),
            e.AdminDrain(op=op),
        ]
        world.fact_at(at, dice.choice(calls))
        if dice.random() < 0.2:
            other = msgspec.structs.replace(settings.models[model], cache_shape="t", fingerprint="t")
            changed = msgspec.structs.replace(settings, models={**settings.models, model: other})
            world.fact_at(at + 1.0, e.ConfigLoaded(config=changed))
    if faults and dice.random() < 0.3:
        end_us = world.now_us + round((at_s + 30) * SECOND)
        world.fact_at(at_s + 5, e.RouterStopping(reason="SIGTERM", deadline_us=end_us))
    return world
