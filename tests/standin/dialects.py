"""How each API words an answer: OpenAI chat, completions and responses, Anthropic messages, llama-server's own.

A dialect turns tokens into frames and never waits; `generate.py` decides when a frame leaves, or that it does not.
The shapes are those that llama-server b11549 sends.
"""

import json
from typing import Any


class Answer:
    """What is known about one generation while it is being told."""

    def __init__(
        self, serial: int, created: int, model: str, body: dict[str, Any], prompt_n: int, cache_n: int
    ) -> None:
        self.id = f"chatcmpl-standin{serial:06d}"
        self.created = created
        self.model = model
        self.body = body
        self.prompt_n = prompt_n
        self.cache_n = cache_n
        self.choices = max(1, int(body.get("n") or 1))
        self.text = ""
        self.predicted_n = 0
        self.prompt_ms = 0.0
        self.predicted_ms = 0.0
        self.limit_hit = False

    def timings(self) -> dict[str, Any]:
        read_n = self.prompt_n - self.cache_n
        return {
            "cache_n": self.cache_n,
            "prompt_n": read_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": self.prompt_ms / max(1, read_n),
            "prompt_per_second": 1000 * read_n / max(0.001, self.prompt_ms),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": self.predicted_ms / max(1, self.predicted_n),
            "predicted_per_second": 1000 * self.predicted_n / max(0.001, self.predicted_ms),
        }

    def usage(self) -> dict[str, Any]:
        return {
            "completion_tokens": self.predicted_n,
            "prompt_tokens": self.prompt_n,
            "total_tokens": self.prompt_n + self.predicted_n,
            "prompt_tokens_details": {"cached_tokens": self.cache_n},
        }

    def finish_reason(self) -> str:
        return "length" if self.limit_hit else "stop"


class Dialect:
    """Frames of a stream: `opening` before the first token, `token` for each, `closing` after the last."""

    streams = True

    def opening(self, answer: Answer) -> bytes:
        return b""

    def token(self, answer: Answer, text: str) -> bytes:
        raise NotImplementedError

    def closing(self, answer: Answer) -> bytes:
        raise NotImplementedError

    def whole(self, answer: Answer) -> Any:
        raise NotImplementedError


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\n".encode() + data({"type": name, **fields})


DONE = b"data: [DONE]\n\n"


class Chat(Dialect):
    """OpenAI chat completions."""

    def _frame(self, answer: Answer, choices: list[dict[str, Any]], **more: Any) -> bytes:
        common = {"created": answer.created, "id": answer.id, "model": answer.model}
        return data({"choices": choices, **common, "object": "chat.completion.chunk", **more})

    def _choices(self, answer: Answer, reason: str | None, delta: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"finish_reason": reason, "index": index, "delta": delta} for index in range(answer.choices)]

    def opening(self, answer: Answer) -> bytes:
        return self._frame(answer, self._choices(answer, None, {"role": "assistant", "content": None}))

    def token(self, answer: Answer, text: str) -> bytes:
        return self._frame(answer, self._choices(answer, None, {"content": text}))

    def closing(self, answer: Answer) -> bytes:
        last = self._choices(answer, answer.finish_reason(), {})
        if (answer.body.get("stream_options") or {}).get("include_usage"):
            usage = self._frame(answer, [], usage=answer.usage(), timings=answer.timings())
            return self._frame(answer, last) + usage + DONE
        return self._frame(answer, last, timings=answer.timings()) + DONE

    def whole(self, answer: Answer) -> Any:
        message = {"role": "assistant", "content": answer.text}
        return {
            "choices": [
                {"finish_reason": answer.finish_reason(), "index": index, "message": message}
                for index in range(answer.choices)
            ],
            "created": answer.created,
            "model": answer.model,
            "object": "chat.completion",
            "usage": answer.usage(),
            "id": answer.id,
            "timings": answer.timings(),
        }


class Completion(Dialect):
    """OpenAI completions; the usage comes in the last text frame, asked for or not, as llama-server does it."""

    def _value(self, answer: Answer, text: str, reason: str | None, **more: Any) -> dict[str, Any]:
        choices = [
            {"text": text, "index": index, "logprobs": None, "finish_reason": reason} for index in range(answer.choices)
        ]
        common = {"created": answer.created, "model": answer.model, "object": "text_completion", "id": answer.id}
        return {"choices": choices, **common, **more}

    def token(self, answer: Answer, text: str) -> bytes:
        return data(self._value(answer, text, None))

    def closing(self, answer: Answer) -> bytes:
        more = {"usage": answer.usage(), "timings": answer.timings()}
        return data(self._value(answer, "", answer.finish_reason(), **more)) + DONE

    def whole(self, answer: Answer) -> Any:
        more = {"usage": answer.usage(), "timings": answer.timings()}
        return self._value(answer, answer.text, answer.finish_reason(), **more)


class Native(Dialect):
    """llama-server's own completion and infill; its stream ends without [DONE]."""

    def token(self, answer: Answer, text: str) -> bytes:
        counts = {"tokens_predicted": answer.predicted_n, "tokens_evaluated": answer.prompt_n}
        return data({"index": 0, "content": text, "tokens": [1], "stop": False, "id_slot": -1, **counts})

    def _last(self, answer: Answer, text: str) -> dict[str, Any]:
        return {
            "index": 0,
            "content": text,
            "tokens": [],
            "id_slot": 0,
            "stop": True,
            "model": answer.model,
            "tokens_predicted": answer.predicted_n,
            "tokens_evaluated": answer.prompt_n,
            "stop_type": "limit" if answer.limit_hit else "eos",
            "tokens_cached": answer.prompt_n + answer.predicted_n,
            "timings": answer.timings(),
        }

    def closing(self, answer: Answer) -> bytes:
        return data(self._last(answer, ""))

    def whole(self, answer: Answer) -> Any:
        return self._last(answer, answer.text)


class Messages(Dialect):
    """Anthropic messages."""

    def _usage(self, answer: Answer, output_tokens: int) -> dict[str, int]:
        read_n = answer.prompt_n - answer.cache_n
        return {"cache_read_input_tokens": answer.cache_n, "input_tokens": read_n, "output_tokens": output_tokens}

    def _message(self, answer: Answer, content: list[Any], reason: str | None, tokens: int) -> dict[str, Any]:
        who = {"id": answer.id, "type": "message", "role": "assistant", "content": content, "model": answer.model}
        return {**who, "stop_reason": reason, "stop_sequence": None, "usage": self._usage(answer, tokens)}

    def _reason(self, answer: Answer) -> str:
        return "max_tokens" if answer.limit_hit else "end_turn"

    def opening(self, answer: Answer) -> bytes:
        start = event("message_start", message=self._message(answer, [], None, 0))
        return start + event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def token(self, answer: Answer, text: str) -> bytes:
        return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def closing(self, answer: Answer) -> bytes:
        delta = {"stop_reason": self._reason(answer), "stop_sequence": None}
        stop = event("content_block_stop", index=0)
        return (
            stop
            + event("message_delta", delta=delta, usage={"output_tokens": answer.predicted_n})
            + event("message_stop")
        )

    def whole(self, answer: Answer) -> Any:
        content = [{"type": "text", "text": answer.text}]
        return self._message(answer, content, self._reason(answer), answer.predicted_n)


class Responses(Dialect):
    """OpenAI responses; the stream ends without [DONE]."""

    def _part(self, answer: Answer) -> dict[str, Any]:
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.text}

    def _item(self, answer: Answer, status: str, content: list[Any]) -> dict[str, Any]:
        item = {"type": "message", "status": status, "id": f"msg_{answer.id}", "content": content}
        return {**item, "role": "assistant"}

    def _response(self, answer: Answer) -> dict[str, Any]:
        return {
            "id": f"resp_{answer.id}",
            "object": "response",
            "created_at": answer.created,
            "status": "completed",
            "model": answer.model,
            "output": [self._item(answer, "completed", [self._part(answer)])],
            "usage": {
                "input_tokens": answer.prompt_n,
                "output_tokens": answer.predicted_n,
                "total_tokens": answer.prompt_n + answer.predicted_n,
                "input_tokens_details": {"cached_tokens": answer.cache_n},
            },
        }

    def opening(self, answer: Answer) -> bytes:
        begun = {"id": f"resp_{answer.id}", "object": "response", "status": "in_progress"}
        item_id = f"msg_{answer.id}"
        return b"".join(
            [
                event("response.created", response=begun),
                event("response.in_progress", response=begun),
                event("response.output_item.added", item=self._item(answer, "in_progress", [])),
                event("response.content_part.added", item_id=item_id, part={"type": "output_text", "text": ""}),
            ]
        )

    def token(self, answer: Answer, text: str) -> bytes:
        return event("response.output_text.delta", item_id=f"msg_{answer.id}", delta=text)

    def closing(self, answer: Answer) -> bytes:
        item_id = f"msg_{answer.id}"
        return b"".join(
            [
                event("response.output_text.done", item_id=item_id, text=answer.text),
                event("response.content_part.done", item_id=item_id, part=self._part(answer)),
                event("response.output_item.done", item=self._item(answer, "completed", [self._part(answer)])),
                event("response.completed", response=self._response(answer), timings=answer.timings()),
            ]
        )

    def whole(self, answer: Answer) -> Any:
        return self._response(answer)


class Transcription(Dialect):
    """OpenAI audio transcriptions."""

    def token(self, answer: Answer, text: str) -> bytes:
        return data({"type": "transcript.text.delta", "delta": text})

    def closing(self, answer: Answer) -> bytes:
        return data({"type": "transcript.text.done", "text": answer.text, "usage": answer.usage()}) + DONE

    def whole(self, answer: Answer) -> Any:
        return {"text": answer.text, "usage": answer.usage(), "timings": answer.timings()}


class Embedding(Dialect):
    """OpenAI embeddings."""

    streams = False

    def whole(self, answer: Answer) -> Any:
        asked = answer.body.get("input", answer.body.get("content", ""))
        texts = asked if isinstance(asked, list) else [asked]
        rows = [{"embedding": [0.6, 0.8], "index": index, "object": "embedding"} for index in range(len(texts))]
        usage = {"prompt_tokens": answer.prompt_n, "total_tokens": answer.prompt_n}
        return {"model": answer.model, "object": "list", "usage": usage, "data": rows}


class NativeEmbedding(Embedding):
    """llama-server's own embedding."""

    def whole(self, answer: Answer) -> Any:
        rows = super().whole(answer)["data"]
        return [{"index": row["index"], "embedding": [row["embedding"]]} for row in rows]


class Rerank(Dialect):
    """Jina-style rerank: the first document is the best."""

    streams = False

    def whole(self, answer: Answer) -> Any:
        documents = answer.body.get("documents") or answer.body.get("texts") or []
        scores = [{"index": index, "relevance_score": 1.0 / (1 + index)} for index in range(len(documents))]
        usage = {"prompt_tokens": answer.prompt_n, "total_tokens": answer.prompt_n}
        return {"model": answer.model, "object": "list", "usage": usage, "results": scores}


class Decision(Dialect):
    """A decision model's answer."""

    streams = False

    def whole(self, answer: Answer) -> Any:
        return {"model": answer.model, "answers": [{"index": 0, "scores": [1.0]}], "usage": answer.usage()}


DIALECTS: dict[str, Dialect] = {
    "/chat/completions": Chat(),
    "/v1/completions": Completion(),
    "/completions": Native(),
    "/completion": Native(),
    "/infill": Native(),
    "/messages": Messages(),
    "/responses": Responses(),
    "/audio/transcriptions": Transcription(),
    "/v1/embeddings": Embedding(),
    "/embeddings": NativeEmbedding(),
    "/embedding": NativeEmbedding(),
    "/rerank": Rerank(),
    "/reranking": Rerank(),
    "/systemone": Decision(),
}
"""By path; a path with /v1 that is not listed speaks as the one without."""


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a generation route, or nothing for any other path."""
    return DIALECTS.get(path) or DIALECTS.get(path.removeprefix("/v1"))
