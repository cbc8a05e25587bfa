"""A stand-in that answers every chat by calling the first tool it was offered, as a large model would.

`python -m tests.clients.tool_caller` takes llama-server's arguments. The small models of the tests call no tools; here
the choice is made, in llama-server's shapes. The arguments come in pieces when they are streamed.
"""

import sys
from typing import Any

from tests.standin.dialects import DIALECTS, Answer, Chat, Messages, data, event
from tests.standin.dialects import DONE as END_OF_STREAM
from tests.standin.server import main

PIECES = ('{"city"', ': "Ro', 'me"}')
CALL_ID = "call_1"


class ChatCall(Chat):
    """OpenAI chat completions."""

    def _delta(self, answer: Answer, reason: str | None, call: dict[str, Any] | None) -> bytes:
        delta = {"tool_calls": [{"index": 0, **call}]} if call else {}
        choice = {"finish_reason": reason, "index": 0, "delta": delta}
        common = {"created": answer.created, "id": answer.id, "model": answer.model}
        return data({"choices": [choice], **common, "object": "chat.completion.chunk"})

    def token(self, answer: Answer, text: str) -> bytes:
        """The first names the tool and its id, each brings a piece of the arguments."""
        piece = PIECES[answer.predicted_n - 1]
        if answer.predicted_n > 1:
            return self._delta(answer, None, {"function": {"arguments": piece}})
        call = {"id": CALL_ID, "type": "function", "function": {"name": _tool(answer), "arguments": piece}}
        return self._delta(answer, None, call)

    def closing(self, answer: Answer) -> bytes:
        return self._delta(answer, "tool_calls", None) + END_OF_STREAM

    def whole(self, answer: Answer) -> Any:
        call = {"id": CALL_ID, "type": "function", "function": {"name": _tool(answer), "arguments": "".join(PIECES)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"finish_reason": "tool_calls", "index": 0, "message": message}
        return {**super().whole(answer), "choices": [choice]}


class MessagesCall(Messages):
    """Anthropic messages."""

    def opening(self, answer: Answer) -> bytes:
        block = {"type": "tool_use", "id": CALL_ID, "name": _tool(answer), "input": {}}
        start = event("message_start", message=self._message(answer, [], None, 0))
        return start + event("content_block_start", index=0, content_block=block)

    def token(self, answer: Answer, text: str) -> bytes:
        delta = {"type": "input_json_delta", "partial_json": PIECES[answer.predicted_n - 1]}
        return event("content_block_delta", index=0, delta=delta)

    def _reason(self, answer: Answer) -> str:
        return "tool_use"

    def whole(self, answer: Answer) -> Any:
        content = [{"type": "tool_use", "id": CALL_ID, "name": _tool(answer), "input": {"city": "Rome"}}]
        return self._message(answer, content, "tool_use", answer.predicted_n)


def _tool(answer: Answer) -> str:
    tool = answer.body["tools"][0]
    return str(tool.get("function", tool)["name"])


if __name__ == "__main__":
    DIALECTS["/chat/completions"] = ChatCall()
    DIALECTS["/messages"] = MessagesCall()
    main(sys.argv[1:])
