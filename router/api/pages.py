"""What is around the router's pages: the headers that keep a browser from being turned against its owner.

Scripts, styles and data come from the router itself; figures and tables set styles on their elements, hence
'unsafe-inline' for styles alone. Nothing of this touches what a llama-server answers: its web UI has rules of its own.
"""

from urllib.parse import quote

from router.api.cors import Message, Send

_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#3d6fe0"/>'
    '<path d="M7 16h16M12 16c4 0 4-7 8-7h3M12 16c4 0 4 7 8 7h3" fill="none" stroke="#fff" stroke-width="3"/></svg>'
)
ICON = f'<link rel="icon" href="data:image/svg+xml,{quote(_ICON, safe="")}">'
"""For pages that the router makes itself; in the page, so that no browser asks for /favicon.ico."""

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)

EVERYWHERE = ((b"x-content-type-options", b"nosniff"),)
ON_PAGES = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    # Not "no-referrer": under that a browser sends a form with `Origin: null`, and we could not tell whose it is.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), payment=(), usb=()"),
)


def guarded(send: Send) -> Send:
    """Adds what is missing to the head of an answer."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            there = {name.lower() for name, _ in headers}
            kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
            wanted = EVERYWHERE + ON_PAGES if kind.startswith(b"text/html") else EVERYWHERE
            message["headers"] = [*headers, *(field for field in wanted if field[0] not in there)]
        await send(message)

    return with_headers
