"""Which headers cross the router, in both directions.

Headers of one hop stay there (RFC 9110, 7.6.1). A client's credentials end here, the child's begin. Everything else
passes as it came.
"""

from collections.abc import Iterable

Fields = list[tuple[bytes, bytes]]

_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_UP = _HOP | {b"authorization", b"x-api-key", b"cookie", b"content-length", b"expect"}
_NOT_UP_PLAIN = _NOT_UP | {b"accept-encoding"}


def to_upstream(
    headers: Iterable[tuple[bytes, bytes]],
    *,
    key: str,
    length: int | None,
    decoded: bool = False,
    plain: bool = True,
    close: bool = True,
) -> Fields:
    """The headers of a client's request as the child gets them.

    `length` is that of the body, None for none; `decoded`: the body is no longer encoded as its header says; `plain`:
    the answer is to come uncompressed, since we look into it; `close`: the connection carries nothing after it.
    """
    drop = _NOT_UP_PLAIN if plain else _NOT_UP
    fields: Fields = []
    for field in headers:
        name = field[0]
        if name in drop:
            if name == b"connection":
                drop = drop | _named(field[1])
                fields = [kept for kept in fields if kept[0] not in drop]
        elif not (decoded and name == b"content-encoding"):
            fields.append(field)
    if plain:
        fields.append((b"accept-encoding", b"identity"))
    if key:
        fields.append((b"authorization", b"Bearer " + key.encode()))
    if length is not None:
        fields.append((b"content-length", b"%d" % length))
    if close:
        fields.append((b"connection", b"close"))
    return fields


def to_client(headers: Fields, *, sse: bool, own: Fields) -> Fields:
    """The headers of a child's answer as the client gets them, with `own` added where the child did not set them.

    On server-sent events `X-Accel-Buffering: no` is set, once: without it, nginx keeps frames back.
    """
    fields: Fields = []
    drop = _HOP
    names = set()
    for field in headers:
        name = field[0]
        if name in drop:
            if name == b"connection":
                drop = drop | _named(field[1])
                fields = [kept for kept in fields if kept[0] not in drop]
        elif not (name == b"x-accel-buffering" and sse):
            fields.append(field)
            names.add(name)
    if sse:
        fields.append((b"x-accel-buffering", b"no"))
    fields.extend(field for field in own if field[0] not in names)
    return fields


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The first value of a header, given in lower case; empty when it is absent."""
    for key, value in headers:
        if key == name:
            return value
    return b""


def _named(connection: bytes) -> frozenset[bytes]:
    """Headers that a Connection header declares to be of this hop."""
    names = frozenset(token.strip().lower() for token in connection.split(b","))
    return names - {b"content-length", b"content-type", b""}
