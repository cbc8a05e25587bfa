"""Under which names the router answers, where nothing else keeps a web page out.

A page on the internet can have its own name point to 127.0.0.1 once it is loaded ("DNS rebinding"): for the browser the
router is then part of that page's site. So a router that listens on this machine only, and asks for no key, answers
only to names that nobody can take on: addresses, names without a dot, names of this machine and of private networks.
With keys such a page gets nowhere, since it has none; and where a router listens wider, its names are the owner's.
"""

import ipaddress
import socket
from collections.abc import Collection
from functools import lru_cache

from router.config import Config, is_loopback

HOST_MAX = 300
"""Bytes; no name is longer, and what is remembered below stays small."""
PRIVATE = (".localhost", ".local", ".internal", ".lan", ".home", ".home.arpa")


def is_own(config: Config, host: bytes) -> bool:
    """Whether a request under this Host header is to be answered."""
    if config.keys or not host or not _listens_here_only(config.host):
        return True
    if len(host) > HOST_MAX:
        return False
    if _nobody_can_take(host):
        return True
    return "*" in config.cors_origins or _name_in(host) in _hosts(config.cors_origins)


_listens_here_only = lru_cache(maxsize=8)(is_loopback)


@lru_cache(maxsize=256)  # every request asks, and nearly all of them under one name
def _nobody_can_take(host: bytes) -> bool:
    """Whether no website can have this name."""
    name = _name_in(host)
    if "." not in name or name.endswith(PRIVATE) or name == socket.gethostname().casefold():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_in(host: bytes) -> str:
    """Without the port."""
    name = host.decode("latin-1").casefold()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return name.rstrip(".")


def _hosts(origins: Collection[str]) -> set[str]:
    return {origin.partition("://")[2].partition(":")[0].casefold() for origin in origins}
