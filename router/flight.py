"""One request between its arrival and its outcome, as the relay keeps it."""

import asyncio
from typing import Literal, NamedTuple

from eventlog.events import RequestDispatched, RequestFailed, RequestRejected, RequestRequeued
from router.answer import Answer
from router.body import Body
from router.callers import ANYBODY
from router.headers import Fields
from router.reply import Reply
from router.routes import Route
from router.upstream import Connection

Verdict = RequestDispatched | RequestRequeued | RequestFailed | RequestRejected
By = Literal["client", "admin", "deadline", "shutdown", "delete", "fault"]


class Progress(NamedTuple):
    """What a request in flight has been given so far, for whoever looks for replicas that do nothing."""

    rid: int
    replica: str
    dispatched_us: int
    last_frame_us: int
    """When the last data frame came; 0 before the first one and for answers that do not stream."""
    frames: int
    prompt_tokens: int
    stream: bool


class Flight:
    """A request that was accepted: what it asks for, where it is, and how far its answer has come."""

    __slots__ = (
        "answer",
        "arrived_us",
        "body",
        "caller",
        "cancelled_by",
        "client_gone",
        "comment_due",
        "connection",
        "conversation",
        "conversation_id",
        "detached",
        "dispatched_us",
        "headers",
        "inbox",
        "method",
        "model",
        "over",
        "prompt_tokens",
        "replica",
        "reply",
        "rid",
        "route",
        "slots_wanted",
        "stream",
        "target",
        "timer",
        "waiter",
    )

    def __init__(self, rid: int, arrived_us: int, route: Route, reply: Reply, body: Body) -> None:
        self.rid = rid
        self.arrived_us = arrived_us
        self.route = route
        self.reply = reply
        self.body = body
        self.method = b"POST"
        self.target = b""
        self.headers: Fields = []
        """As the client sent them."""
        self.caller = ANYBODY
        self.model = ""
        self.stream = False
        self.slots_wanted = 1
        self.prompt_tokens = 0
        self.conversation = ""
        self.conversation_id = ""
        self.detached = False
        """The generation goes on when the client leaves."""
        self.client_gone = False
        self.inbox: list[Verdict] = []
        self.waiter: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.comment_due = False
        self.replica = ""
        """Where it was dispatched to; empty while it waits."""
        self.dispatched_us = 0
        self.connection: Connection | None = None
        self.answer: Answer | None = None
        self.cancelled_by: By | None = None
        self.over = False
        """Its outcome is in the log, or on the way there."""

    async def next_verdict(self) -> Verdict | None:
        """The next decision about this request; None when it is cancelled, or when a comment is due."""
        while not self.inbox:
            if self.cancelled_by is not None or self.comment_due:
                return None
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self.inbox.pop(0)

    def wake(self) -> None:
        """Let whoever waits for a decision, or for the replica's first bytes, look again."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self.connection is not None:
            self.connection.nudge()

    def progress(self) -> Progress:
        answer = self.answer
        return Progress(
            self.rid,
            self.replica,
            self.dispatched_us,
            answer.last_frame_us if answer is not None else 0,
            answer.frames if answer is not None else 0,
            self.prompt_tokens,
            self.stream,
        )
