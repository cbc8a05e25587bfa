"""A request whose model is not on disk yet: it waits here, and arrives in the queue when the weights have.

Otherwise the queue would evict for it first and download then. Its place in the order is kept, since that is the time
of its headers. Counterpart: `download.py`, which fetches; the relay, which lets a request through here.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from router import errors
from router.body import ClientGone
from router.client import Client
from router.download import DownloadFailed
from router.reply import Reply
from router.waits import first, within


class Replicas(Protocol):
    """The part of `router.replicas.Replicas` that is used here."""

    async def ensure_downloaded(self, model: str) -> None: ...


async def fetched(
    replicas: Replicas,
    model: str,
    client: Client,
    reply: Reply,
    *,
    comment_s: float | None,
    stopping: Callable[[], bool],
) -> None:
    """Return when the model is on disk; a stream is kept alive by a comment every `comment_s` seconds meanwhile.

    Raises RouterError when it cannot be fetched, ClientGone when nobody waits any more; the download goes on then.
    """
    download = asyncio.ensure_future(replicas.ensure_downloaded(model))
    gone = asyncio.Event()
    client.on_gone(gone.set)
    try:
        while not download.done():
            over = first(asyncio.wait([download]), gone.wait())
            await (over if comment_s is None else within(comment_s, over))
            if client.gone:
                raise ClientGone
            if not download.done():
                await reply.comment("downloading the model")
        download.result()
    except DownloadFailed as failure:
        code = "shutting_down" if stopping() else "model_load_failed"
        raise errors.error(code, str(failure), param="model") from None
    finally:
        client.forget()
        if not download.cancel() and not download.cancelled():
            download.exception()  # who has left does not ask how it went
