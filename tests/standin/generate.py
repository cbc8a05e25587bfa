"""One generation of the stand-in, from its slot to its last byte, with every fault on the way."""

import json
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

from tests.standin.dialects import Answer, Dialect
from tests.standin.ledger import LedgerWriter
from tests.standin.script import Script
from tests.standin.slots import Slots, Work
from tests.standin.streams import Stream
from tests.standin.wire import Connection, Gone, Request

LOOK_S = 0.02
"""How often a wait looks at a cancelled stream."""
HEADERS_KEPT = {"accept-encoding", "content-encoding", "content-length", "content-type", "expect", "host"}
HEADERS_KEPT |= {"transfer-encoding", "user-agent", "x-conversation-id", "x-request-id"}


class Service:
    """What all generations of a process share."""

    def __init__(self, script: Script, ledger: LedgerWriter, slots: Slots, alias: str, faulty: bool) -> None:
        self.script = script
        self.ledger = ledger
        self.slots = slots
        self.alias = alias
        self.faulty = faulty
        self.streams: dict[str, Stream] = {}
        self.count = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.predicted_tokens = 0
        self.lock = threading.Lock()

    def die(self, script: Script) -> None:
        """Ends the process now, as the script says."""
        die(script.die, script.last_words, self.ledger)


def die(how: str, last_words: str, ledger: LedgerWriter) -> None:
    """Ends the process: `exit:N`, or a signal by its name."""
    if last_words:
        print(last_words, file=sys.stderr, flush=True)
    ledger.write("exit", how=how)
    if how.startswith("exit:"):
        os._exit(int(how.removeprefix("exit:")))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)  # the signal arrives here


class Generation:
    """One request of a generation route."""

    def __init__(self, service: Service, conn: Connection, request: Request, dialect: Dialect) -> None:
        self.service = service
        self.conn = conn
        self.request = request
        self.dialect = dialect
        self.body = read_body(request)
        self.script = service.script.merged(self.body.get("standin") or {})
        self.headers = {"x-standin-sha256": request.sha256, "x-standin-pid": str(os.getpid())}
        self.streaming = bool(self.body.get("stream")) and dialect.streams
        self.stream: Stream | None = None
        self.closed = False
        self.slots: list[int] = []
        with service.lock:
            service.count += 1
            self.serial = service.count

    def note(self, event: str, **fields: Any) -> None:
        self.service.ledger.write(event, n=self.serial, tag=self.script.tag, path=self.request.path, **fields)

    def run(self) -> bool:
        """Answers; whether the connection can be used again."""
        time.sleep(self.script.take_s)
        kept = {name: value for name, value in self.request.headers.items() if name in HEADERS_KEPT}
        self.note(
            "request_start",
            sha256=self.request.sha256,
            body_bytes=len(self.request.body),
            asked=self.body.get("model"),
            streaming=self.streaming,
            headers=kept,
        )
        script = self.script
        if self.service.faulty and (
            script.die_at_request == self.serial or (script.die_on and script.die_on.encode() in self.request.body)
        ):
            self.service.die(script)
        if script.die_once and self.service.ledger.count(f"died-{script.die_once}") == 1:
            self.service.die(script)
        weight = weight_of(self.body)
        self.slots = self.service.slots.take(weight, self.conn.gone)
        if not self.slots:
            self.note("disconnect_seen", at="deferred")
            raise Gone
        self.note("slot_taken", slots=self.slots, weight=weight)
        try:
            keep = self._answer()
        except Gone:
            if self.stream:
                self.stream.finish()
            if not self.closed:
                self.note("disconnect_seen", at="generating")
                if script.wedged:
                    raise
                time.sleep(script.release_delay_s)
            self._free_slots()
            raise
        self.note("request_end")
        return keep

    def _free_slots(self) -> None:
        """Once; before the last bytes leave, as llama-server does it."""
        if self.slots:
            self.service.slots.free(self.slots)
            self.note("slot_freed", slots=self.slots)
            self.slots = []

    def _answer(self) -> bool:
        if self.script.status:
            self._free_slots()
            kind = {400: "invalid_request_error", 503: "unavailable_error"}.get(self.script.status, "server_error")
            error = {"code": self.script.status, "message": self.script.error, "type": kind}
            return self.conn.answer_json(self.script.status, {"error": error}, self.headers)
        prompt = prompt_of(self.body)
        answer = Answer(
            self.serial,
            int(time.time()),
            str(self.body.get("model") or self.service.alias),
            self.body,
            1 + len(prompt) // 4,
            self.service.slots.cached_chars(self.slots[0], prompt) // 4,
        )
        self.work = Work(self.serial, answer.prompt_n, answer.cache_n, self.script.first_byte_s)
        self.service.slots.work[self.slots[0]] = self.work
        conversation = self.request.headers.get("x-conversation-id")
        if conversation and self.streaming:
            self.stream = self.service.streams[conversation] = Stream(conversation)
        if self.script.stuck and self.service.faulty:
            self._say_nothing()
        if self.script.ping_s and self.streaming:
            self.conn.open_stream(self.headers)
        self._wait(self.script.first_byte_s)
        answer.prompt_ms = (self.script.prompt_s or self.script.first_byte_s) * 1000
        keep = self._tell_stream(answer) if self.streaming else self._tell_whole(answer)
        with self.service.lock:
            self.service.prompt_tokens += answer.prompt_n - answer.cache_n
            self.service.cached_tokens += answer.cache_n
            self.service.predicted_tokens += answer.predicted_n
        return keep

    def _tell_stream(self, answer: Answer) -> bool:
        if not self.conn.chunked:
            self.conn.open_stream(self.headers)
        if opening := self.dialect.opening(answer):
            self._send(opening)
        for number in range(1, self._token_count(answer) + 1):
            self._fault(number)
            self._send(self.dialect.token(answer, self._next_token(answer, number)))
            if number == 1:
                self.note("first_chunk")
            self.note("chunk", number=number)
            self._wait(self.script.gap_s)
        self._free_slots()
        self._send(self.dialect.closing(answer))
        if self.stream:
            self.stream.finish()
            if self.conn.gone():
                raise Gone
        self.conn.end_stream()
        return True

    def _tell_whole(self, answer: Answer) -> bool:
        for number in range(1, self._token_count(answer) + 1):
            self._fault(number)
            self._next_token(answer, number)
            self._wait(self.script.gap_s)
        self._free_slots()
        return self.conn.answer_json(200, self.dialect.whole(answer), self.headers)

    def _token_count(self, answer: Answer) -> int:
        limits = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")
        limit = next((int(self.body[name]) for name in limits if int(self.body.get(name) or -1) > 0), 0)
        answer.limit_hit = 0 < limit <= self.script.tokens
        return limit if answer.limit_hit else self.script.tokens

    def _next_token(self, answer: Answer, number: int) -> str:
        text = f"w{number} ".ljust(self.script.chunk_bytes, ".")
        answer.text += text
        answer.predicted_n = number
        self.work.decoded = number
        answer.predicted_ms += self.script.gap_s * 1000
        return text

    def _fault(self, number: int) -> None:
        """What the script has in store instead of chunk `number`."""
        script = self.script
        if self.service.faulty and script.die_at_chunk == number:
            self.service.die(script)
        if script.silent_at_chunk == number and self.service.faulty:
            self._say_nothing()
        while number == 2 and script.gate and not os.path.exists(script.gate):
            self._wait(LOOK_S)
        if script.close_at_chunk == number:
            self.closed = True
            if script.close == "rst":
                self.conn.reset()
            elif script.close == "clean" and self.streaming:
                self.conn.end_stream()
            elif script.close == "half" and not self.streaming:
                self.conn.answer_half(self.headers)
            raise Gone

    def _say_nothing(self) -> None:
        """Until the client leaves."""
        self.note("silent")
        while True:
            self._wait(1.0)

    def _send(self, data: bytes) -> None:
        if not self.stream:
            self.conn.send_chunk(data)
            return
        self.stream.append(data)
        if not self.conn.gone():
            try:
                self.conn.send_chunk(data)
            except Gone:
                self.note("detached")

    def _wait(self, seconds: float) -> None:
        """Passes time; sends comments meanwhile; raises Gone as soon as nobody wants the answer any more."""
        end = time.monotonic() + seconds
        while True:
            remaining = end - time.monotonic()
            if self.stream:
                if self.stream.cancelled:
                    raise Gone
                if remaining <= 0:
                    return
                time.sleep(min(remaining, LOOK_S))
            elif self.conn.gone(min(remaining, self.script.ping_s or remaining)):
                raise Gone
            elif remaining <= 0:
                return
            if self.script.ping_s and self.conn.chunked and time.monotonic() >= self.conn.sent_at + self.script.ping_s:
                self._send(b":\n\n")


def read_body(request: Request) -> dict[str, Any]:
    """The JSON object, or the fields of a form. Raises ValueError for anything else."""
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        return read_form(request.body, content_type)
    value = json.loads(request.body or b"{}")
    if not isinstance(value, dict):
        raise ValueError("the body is no JSON object")
    return value


def read_form(body: bytes, content_type: str) -> dict[str, Any]:
    boundary = content_type.partition("boundary=")[2].partition(";")[0].strip('"').encode()
    fields: dict[str, Any] = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.strip(b"\r\n").partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        text = f"{len(content)} bytes" if b"filename=" in head else content.decode()
        fields[name] = json.loads(text) if name == "standin" else text
    fields["stream"] = fields.get("stream") == "true"
    return fields


def prompt_of(body: dict[str, Any]) -> str:
    """Everything that a model would read, as one text."""
    parts = ("messages", "prompt", "input", "system", "input_prefix", "query", "documents", "content")
    return "".join(json.dumps(body[part]) for part in parts if part in body)


def weight_of(body: dict[str, Any]) -> int:
    """How many slots a request asks for: its choices, or its prompts."""
    lists = [body[part] for part in ("prompt", "input", "documents") if isinstance(body.get(part), list)]
    prompts = max((sum(isinstance(item, str) for item in items) for items in lists), default=1)
    return max(1, int(body.get("n") or 1)) * max(1, prompts)
