"""Listening sockets: bind one, or say who has the port. Linux only (/proc)."""

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from router.errors import RouterError

BACKLOG = 4096
_LISTEN = "0A"


class PortTaken(RouterError):
    """Somebody else listens there; the message says who, as far as this user may know."""


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening socket; port 0 takes a free one. Raises PortTaken, or OSError for a bad address.

    An IPv6 address may be in brackets, as in a URL.
    """
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except (TypeError, UnicodeError) as error:  # how Python says that it cannot encode a name
        sock.close()
        raise OSError(f"cannot listen at {host!r}: that is no name of a host") from error
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise OSError(f"cannot listen at {host}, port {port}: {error.strerror}") from error
        raise PortTaken(
            f"{host}:{port} is taken by {holder(port)}; stop it, or choose another port with --port or API-port",
            status=500,
            code="port_taken",
        ) from error
    sock.setblocking(False)
    return sock


def holder(port: int) -> str:
    """Who listens on a TCP port, in words: `ollama (pid 812)`."""
    inodes = _listening_inodes(port)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        if any(f"socket:[{inode}]" in _open_files(entry) for inode in inodes):
            with suppress(OSError):
                name = (entry / "comm").read_text(errors="replace").strip()
                return f"{name} (pid {entry.name})"
    return "another process (of another user)"


def _open_files(process: Path) -> list[str]:
    links = []
    with suppress(OSError):  # it ended, or belongs to another user
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                links.append(os.readlink(descriptor))
    return links


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == _LISTEN and int(columns[1].rsplit(":", 1)[1], 16) == port:
                inodes.append(columns[9])
    return inodes
