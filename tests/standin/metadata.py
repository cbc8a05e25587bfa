"""Every route of the stand-in that generates nothing: health, properties, slots, metrics, tokens, streams, web UI."""

import gzip
import os
from collections.abc import Callable
from typing import Any

from tests.standin.generate import Service, prompt_of, read_body
from tests.standin.options import Options
from tests.standin.saves import move
from tests.standin.wire import Connection, Gone, Request

PAGE = b"<!doctype html><title>llama-server stand-in</title><h1>stand-in</h1>"
COUNTERS = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")


def error(code: int, message: str, kind: str) -> tuple[int, Any]:
    return code, {"error": {"code": code, "message": message, "type": kind}}


NOT_FOUND = error(404, "File Not Found", "not_found_error")


class Metadata:
    """Answers by table; a value of the table returns status and JSON."""

    def __init__(self, service: Service, options: Options) -> None:
        self.service = service
        self.options = options
        self.ready = False
        table: dict[tuple[str, str], Callable[[Request], tuple[int, Any]]] = {
            ("GET", "/models"): self.models,
            ("GET", "/props"): self.props,
            ("GET", "/slots"): self.slots,
            ("POST", "/tokenize"): lambda request: (200, {"tokens": self._tokens(request)}),
            ("POST", "/detokenize"): self.detokenize,
            ("POST", "/apply-template"): lambda request: (200, {"prompt": prompt_of(read_body(request))}),
            ("POST", "/messages/count_tokens"): lambda request: (200, {"input_tokens": len(self._tokens(request))}),
            ("POST", "/chat/completions/input_tokens"): self.input_tokens,
            ("POST", "/responses/input_tokens"): self.input_tokens,
            ("GET", "/lora-adapters"): lambda _: (200, []),
            ("POST", "/lora-adapters"): lambda _: (200, {"success": True}),
            ("GET", "/tools"): lambda _: (403, {"error": {"message": "this feature is disabled"}}),
            ("POST", "/chat/completions/control"): self.control,
            ("POST", "/streams/lookup"): self.lookup,
        }
        self.table = table

    def answer(self, conn: Connection, request: Request) -> bool:
        """Answers; whether the connection can be used again."""
        headers = {"x-standin-sha256": request.sha256, "x-standin-pid": str(os.getpid())}
        path = request.path.removeprefix("/v1")
        if path == "/health":
            status, value = (200, {"status": "ok"}) if self.ready else loading()
            return conn.answer_json(status, value, headers)
        if request.headers.get("authorization") != f"Bearer {self.options.api_key}" and self.options.api_key:
            denied = {"message": "Invalid API Key", "type": "authentication_error", "code": 401}
            return conn.answer_json(401, {"error": denied}, headers)
        if not self.ready:
            return conn.answer_json(*loading(), headers)
        self.service.ledger.write("call", method=request.method, path=request.path, sha256=request.sha256)
        if path == "/stream":
            return self.stream(conn, request, headers)
        if path == "/metrics" and self.options.metrics:
            return conn.answer(200, self.metrics().encode(), "text/plain; version=0.0.4", headers)
        if path in ("", "/", "/index.html") and self.options.webui:
            headers["Content-Encoding"] = "gzip"
            return conn.answer(200, gzip.compress(PAGE), "text/html; charset=utf-8", headers)
        found = self.table.get((request.method, path))
        moved = None if found else move(self.service, self.service.script, self.options.slot_save_path, request)
        status, value = found(request) if found else moved or NOT_FOUND
        return conn.answer_json(status, value, headers)

    def models(self, _: Request) -> tuple[int, Any]:
        meta = {"n_ctx": self.options.slot_ctx, "n_ctx_train": 8192, "n_params": 1, "size": 1, "ftype": "Q4_1"}
        names = self.options.aliases
        model = {"id": names[0], "aliases": names, "tags": [], "object": "model", "owned_by": "llamacpp", "meta": meta}
        return 200, {"models": [{"name": names[0], "model": names[0]}], "object": "list", "data": [model]}

    def props(self, _: Request) -> tuple[int, Any]:
        return 200, {
            "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": self.options.slot_ctx},
            "total_slots": len(self.service.slots.taken),
            "model_alias": self.options.aliases[0],
            "model_path": self.options.model,
            "modalities": {"vision": False, "audio": False},
            "endpoint_slots": self.options.slots,
            "endpoint_props": False,
            "endpoint_metrics": self.options.metrics,
            "chat_template": "{{ messages }}",
            "build_info": "b0-standin",
            "is_sleeping": False,
        }

    def slots(self, request: Request) -> tuple[int, Any]:
        if not self.options.slots:
            return error(
                501, "This server does not support slots endpoint. Start it with `--slots`", "not_supported_error"
            )
        taken = list(self.service.slots.taken)
        if "fail_on_no_slot" in request.query and all(taken):
            return error(503, "no slot available", "unavailable_error")
        common = {"n_ctx": self.options.slot_ctx, "speculative": False}
        work = [{} if at is None else at.told() for at in self.service.slots.work]
        return 200, [{"id": slot, **common, "is_processing": busy, **work[slot]} for slot, busy in enumerate(taken)]

    def metrics(self) -> str:
        service = self.service
        totals = (service.prompt_tokens, service.cached_tokens, service.predicted_tokens)
        lines = []
        for name, value in zip(COUNTERS, totals, strict=True):
            lines += [f"# HELP llamacpp:{name} Counted", f"# TYPE llamacpp:{name} counter", f"llamacpp:{name} {value}"]
        busy = {"requests_processing": sum(service.slots.taken), "requests_deferred": len(service.slots.waiting)}
        for name, value in busy.items():
            lines += [f"# HELP llamacpp:{name} Now", f"# TYPE llamacpp:{name} gauge", f"llamacpp:{name} {value}"]
        return "\n".join(lines) + "\n"

    def detokenize(self, request: Request) -> tuple[int, Any]:
        return 200, {"content": " ".join(f"w{token}" for token in read_body(request).get("tokens", []))}

    def input_tokens(self, request: Request) -> tuple[int, Any]:
        return 200, {"input_tokens": len(self._tokens(request)), "object": "response.input_tokens"}

    def control(self, request: Request) -> tuple[int, Any]:
        body = read_body(request)
        if not body.get("id"):
            return error(400, "missing completion id", "invalid_request_error")
        if body.get("action") != "reasoning_end":
            return error(400, "unknown control action", "invalid_request_error")
        return 200, {"success": True}

    def lookup(self, request: Request) -> tuple[int, Any]:
        asked = read_body(request).get("conversation_ids", [])
        return 200, [self.service.streams[name].status() for name in asked if name in self.service.streams]

    def stream(self, conn: Connection, request: Request, headers: dict[str, str]) -> bool:
        """GET reads a detached generation from a byte on, following it to its end; DELETE ends it."""
        stream = self.service.streams.get(request.query.get("conv_id", ""))
        if stream is None:
            return conn.answer_json(*NOT_FOUND, headers)
        if request.method == "DELETE":
            stream.cancel()
            del self.service.streams[stream.conversation]
            return conn.answer(204, b"", "application/json", headers)
        conn.open_stream(headers)
        offset, done = int(request.query.get("from") or 0), False
        while not done:
            data, done = stream.read(offset, 0.05)
            if data:
                conn.send_chunk(data)
                offset += len(data)
            elif conn.gone():
                raise Gone
        conn.end_stream()
        return True

    def _tokens(self, request: Request) -> list[int]:
        return list(range(1, 1 + max(1, len(prompt_of(read_body(request))) // 4)))


def loading() -> tuple[int, Any]:
    return error(503, "Loading model", "unavailable_error")
