"""What the router must know of a request's body, taken without changing or keeping it.

The model, a few numbers, and hashes: of the conversation, and of the prompt's growing prefix (tools, then each message;
plain prompts in blocks of 1 KiB). Hashes are keyed, so a log does not tell what was said. Raw bytes are hashed as they
came: a client that repeats its history repeats them.

A field of the wrong type is taken as absent: llama-server says what is wrong with it in its own words. Only a model of
the wrong type is refused: without it nobody knows whom to ask, or the default model would answer for another.
"""

import hashlib
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

import msgspec

from eventlog.events import PrefixBlock
from router import errors
from router.body import Buffer
from router.problems import shortened
from router.routes import Route

BLOCK = 1024
"""Bytes of a plain prompt per step of its prefix."""
PREFIX_LIMIT = 64
"""Steps of a prefix that are kept."""
PREFIX_RECENT = 24
"""Of which the last are kept without gaps."""
BYTES_PER_TOKEN = 4
TOKENS_PER_ATTACHMENT = 1024
"""Guesses that need no tokenizer: text, and an image or a sound in base64."""

ATTACHMENT_MIN = 2048
"""Bytes of base64 from which on something counts as an attachment."""
OPENING_LIMIT = 8
"""Messages among which the user's first one is looked for."""
FORM_VALUE_LIMIT = 64 * 1024
NUMBER_MAX = (1 << 31) - 1
"""A larger number is none that llama-server takes."""

_BOUNDARY = re.compile(rb'boundary=(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_FORM_NAME = re.compile(rb'[;\s]name=(?:"([^"]*)"|([^\s;]+))', re.IGNORECASE)
_FORM_FILE = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)


class Peeked(msgspec.Struct):
    """What a body says; `model` None when it does not say."""

    model: str | None = None
    stream: bool = False
    slots_wanted: int = 1
    max_tokens: int = 0
    messages: int = 0
    tools: int = 0
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    opening: str = ""
    """Keyed hash of what a conversation began with; empty when there is none."""
    prefix: list[PrefixBlock] = []


_NONE = msgspec.Raw()


class _Fields(msgspec.Struct):
    """The fields looked at, each of them still as it came; empty when absent."""

    model: msgspec.Raw = _NONE
    stream: msgspec.Raw = _NONE
    n: msgspec.Raw = _NONE
    max_tokens: msgspec.Raw = _NONE
    max_completion_tokens: msgspec.Raw = _NONE
    max_output_tokens: msgspec.Raw = _NONE
    n_predict: msgspec.Raw = _NONE
    tools: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    input_prefix: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    documents: msgspec.Raw = _NONE
    content: msgspec.Raw = _NONE


class _Role(msgspec.Struct):
    role: str = ""


_T = TypeVar("_T")
_fields = msgspec.json.Decoder(_Fields)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_role = msgspec.json.Decoder(_Role)
_str = msgspec.json.Decoder(str)
_int = msgspec.json.Decoder(Annotated[int, msgspec.Meta(le=NUMBER_MAX)])
_bool = msgspec.json.Decoder(bool)


def fingerprint(salt: bytes, *parts: bytes | memoryview | msgspec.Raw) -> str:
    """A keyed hash of `parts`, in 16 hex digits. `salt` has at most 64 bytes."""
    digest = hashlib.blake2b(key=salt, digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def json_body(body: Buffer, route: Route, salt: bytes) -> Peeked:
    """Look into a JSON body. Raises RouterError when it is not a JSON object, or its model is not a name."""
    try:
        fields = _fields.decode(without_mark(body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.error("invalid_body", f"the body is not a JSON object: {error}") from error
    peeked = Peeked(
        model=_model(fields.model),
        stream=_read(_bool, fields.stream) is True,
        slots_wanted=max(1, _read(_int, fields.n) or 0),
        tools=len(_items(fields.tools)),
    )
    for limit in (fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens, fields.n_predict):
        peeked.max_tokens = peeked.max_tokens or max(0, _read(_int, limit) or 0)
    if route.prompt == "messages":
        _take_messages(peeked, _present(fields.tools, fields.system), _items(fields.messages), salt)
    elif route.prompt == "input":
        messages = _items(fields.input) or _present(fields.input)
        _take_messages(peeked, _present(fields.tools, fields.instructions), messages, salt)
    elif route.prompt == "prompt" and _count(fields.prompt) <= 1:
        _take_prompt(peeked, _present(fields.input_prefix, fields.prompt), salt)
    else:
        given = _present(fields.prompt, fields.documents, fields.input, fields.content, fields.messages)
        peeked.slots_wanted *= max(1, *map(_count, given)) if given else 1
        _count_bytes(peeked, sum(map(len, given)))
    return peeked


def without_mark(body: Buffer) -> Buffer:
    """A JSON text without the byte order mark that some programs begin a file with; llama-server passes over it."""
    return bytes(body[len(BOM_UTF8) :]) if body[: len(BOM_UTF8)] == BOM_UTF8 else body


def form_body(body: Buffer, content_type: bytes) -> Peeked:
    """Look into a multipart form: fields before and after the file count alike."""
    boundary = _boundary(content_type)
    peeked = Peeked(prompt_bytes=len(body))
    for name, value in _form_fields(body, boundary):
        if name == b"model":
            peeked.model = value.decode("utf-8", "replace").strip() or None
        elif name == b"stream":
            peeked.stream = value.strip().lower() in (b"true", b"1")
    return peeked


def thin(blocks: Sequence[PrefixBlock]) -> list[PrefixBlock]:
    """At most PREFIX_LIMIT steps: the recent ones, and of the older every 2nd, 4th, 8th ...

    The stride is a power of two and counts from the start, so that two turns of one conversation keep the same steps.
    """
    old = len(blocks) - PREFIX_RECENT
    if len(blocks) <= PREFIX_LIMIT:
        return list(blocks)
    stride = 1
    while old // stride > PREFIX_LIMIT - PREFIX_RECENT:
        stride *= 2
    return [*blocks[stride - 1 : old : stride], *blocks[old:]]


# --- JSON -----------------------------------------------------------------------------------------------------------


def _take_messages(peeked: Peeked, head: Sequence[msgspec.Raw], messages: Sequence[msgspec.Raw], salt: bytes) -> None:
    digest = hashlib.blake2b(key=salt, digest_size=8)
    blocks: list[PrefixBlock] = []
    total = attached = attachments = 0
    for raw in (*head, *messages):
        part = memoryview(raw)
        digest.update(part)
        total += len(part)
        blocks.append(PrefixBlock(digest.copy().hexdigest(), total))
        if len(part) >= ATTACHMENT_MIN:
            for length in _attachments(bytes(part)):
                attached += length
                attachments += 1
    peeked.messages = len(messages)
    peeked.prefix = thin(blocks)
    _count_bytes(peeked, total, attached, attachments)
    if messages:
        peeked.opening = fingerprint(salt, *head, *_opening(messages))


def _attachments(message: bytes) -> Iterator[int]:
    """Lengths of what is in the message as base64: data URLs, and the `data` of sounds and documents."""
    for marker in (b";base64,", b'"data":"', b'"data": "'):
        at = message.find(marker)
        while at >= 0:
            start = at + len(marker)
            end = message.find(b'"', start)
            if end - start >= ATTACHMENT_MIN:
                yield end - start
            at = message.find(marker, max(start, end))


def _opening(messages: Sequence[msgspec.Raw]) -> Sequence[msgspec.Raw]:
    """Everything up to the user's first message, within reason."""
    for index, message in enumerate(messages[:OPENING_LIMIT]):
        role = _read(_role, message)
        if role is None or role.role == "user":
            return messages[: index + 1]
    return messages[:1]


def _take_prompt(peeked: Peeked, parts: Sequence[msgspec.Raw], salt: bytes) -> None:
    """Blocks of the raw bytes; the last, incomplete one is left out, as the next turn would not have it."""
    digest = hashlib.blake2b(key=salt, digest_size=8)
    blocks: list[PrefixBlock] = []
    total = 0
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view) - BLOCK + 1, BLOCK):
            digest.update(view[start : start + BLOCK])
            blocks.append(PrefixBlock(digest.copy().hexdigest(), total + start + BLOCK))
        total += len(view)
    peeked.prefix = thin(blocks)
    _count_bytes(peeked, total)
    if parts:
        peeked.opening = fingerprint(salt, *(memoryview(part)[:BLOCK] for part in parts))


def _count_bytes(peeked: Peeked, total: int, attached: int = 0, attachments: int = 0) -> None:
    peeked.prompt_bytes = total
    peeked.prompt_tokens = -(-(total - attached) // BYTES_PER_TOKEN) + attachments * TOKENS_PER_ATTACHMENT


def _read(decoder: msgspec.json.Decoder[_T], raw: msgspec.Raw) -> _T | None:
    """The value of a field; None when it is absent or of another type."""
    if not len(raw):
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _model(raw: msgspec.Raw) -> str | None:
    """None for null and the empty name, as where there is none at all."""
    name = _read(_str, raw)
    if name is None and _present(raw):
        given = shortened(bytes(memoryview(raw)[:200]).decode(errors="replace"))
        raise errors.error("invalid_parameter", f"'model' is the name of a model, a string, not {given}", param="model")
    return name or None


def _present(*fields: msgspec.Raw) -> list[msgspec.Raw]:
    return [raw for raw in fields if len(raw) and bytes(memoryview(raw)[:4]) != b"null"]


def _items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    return _read(_list, raw) or []


def _count(raw: msgspec.Raw) -> int:
    """How many prompts or inputs an array holds; a text, or an array of token numbers, is one."""
    start = bytes(memoryview(raw)[:64]).lstrip()
    if not start.startswith(b"[") or start[1:].lstrip()[:1] in b"-0123456789":
        return 1
    return len(_items(raw))


# --- multipart forms ------------------------------------------------------------------------------------------------


def _boundary(content_type: bytes) -> bytes:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise errors.error("invalid_body", "Content-Type says multipart/form-data without a boundary")
    return found[1] or found[2]


def _form_fields(body: Buffer, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and values of the fields that are not files. A form that breaks off ends the search, not the request."""
    delimiter = b"--" + boundary
    at = body.find(delimiter)
    while at >= 0:
        start = body.find(b"\r\n", at + len(delimiter)) + 2
        end_of_head = body.find(b"\r\n\r\n", start - 2)
        following = body.find(b"\r\n" + delimiter, max(start - 2, end_of_head))
        if start < 2 or end_of_head < 0 or following < 0:
            return
        head = bytes(body[start:end_of_head])
        name = _FORM_NAME.search(head)
        if name is not None and _FORM_FILE.search(head) is None and following - end_of_head <= FORM_VALUE_LIMIT:
            yield name[1] or name[2], bytes(body[end_of_head + 4 : following])
        at = following + 2
