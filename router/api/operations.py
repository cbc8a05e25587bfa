"""Administrative calls: a fact goes into the loop, its one AdminDone comes back and becomes an answer or an error."""

import asyncio
from collections.abc import Sequence
from typing import Literal

from eventlog.events import AdminDone, AdminDrain, AdminUnload, Fact, LoadWished
from router import errors
from router.api.services import Services
from router.callers import Caller
from router.config import Config, ModelConfig
from router.download import DownloadFailed
from router.naming import resolve

By = Literal["admin", "preload", "reload"]
"""Who wishes for a model."""

SOON_S = 0.1
"""A call that is not waited for still hears of an error that comes at once."""


async def load(services: Services, model: ModelConfig, *, wait: bool) -> AdminDone | None:
    """Wish for a model; None when it is still on its way. Raises the error of a load that failed.

    What has to be fetched from a hub is fetched before the wish is made, so that nothing is evicted for it too early.
    """
    if services.replicas.needs_download(model.name):
        return await outcome(
            services, services.keep(_fetch_and_load(services, model, "admin")), wait=wait, model=model.name
        )
    wish = _wish(services, model, "admin")
    return await ask(services, wish.op, wish, wait=wait, model=model.name)


def preload(services: Services) -> None:
    """Wish for what is to be loaded at the start, in the order of the configuration; what has to be fetched follows."""
    _wish_for(services, [model for model in services.config.models.values() if model.load_on_startup], "preload")


def load_after_reload(services: Services, before: Config) -> None:
    """The same for what came new with a reload, or newly is to be loaded at the start.

    Other changes of a model load nothing: what was loaded before comes back by its next request.
    """
    known = services.loop.state.models
    already = {name for name, model in before.models.items() if model.load_on_startup}
    wanted = [
        model
        for name, model in services.config.models.items()
        if model.load_on_startup and name not in already and (name not in known or known[name].phase == "absent")
    ]
    _wish_for(services, wanted, "reload")


def _wish_for(services: Services, wanted: Sequence[ModelConfig], by: By) -> None:
    missing = [model for model in wanted if services.replicas.needs_download(model.name)]
    services.loop.post(*(_wish(services, model, by) for model in wanted if model not in missing))
    for model in missing:
        services.keep(_fetch_and_load(services, model, by))


def _wish(services: Services, model: ModelConfig, by: By) -> LoadWished:
    return LoadWished(op=services.loop.next_op(), rid=services.loop.next_rid(), model=model.name, by=by)


async def _fetch_and_load(services: Services, model: ModelConfig, by: By) -> AdminDone:
    try:
        await services.replicas.ensure_downloaded(model.name)
    except DownloadFailed as failure:
        raise errors.error("model_load_failed", str(failure), param="model") from None
    wish = _wish(services, model, by)
    return await begin(services, wish.op, wish)


async def unload(services: Services, model: ModelConfig, *, wait: bool, force: bool, by: str) -> AdminDone | None:
    """Unload one model, drained first unless `force`; queued requests stay queued and load it again in their turn."""
    op = services.loop.next_op()
    call = AdminUnload(op=op, model=model.name, force=force, by=by)
    return await ask(services, op, call, wait=wait, model=model.name)


async def drain(services: Services, *, wait: bool, by: str, force: bool = False) -> AdminDone | None:
    """Unload every model once it is idle; with `force` at once, as `unload` does one."""
    op = services.loop.next_op()
    return await ask(services, op, AdminDrain(op=op, by=by, force=force), wait=wait)


async def ask(services: Services, op: int, fact: Fact, *, wait: bool, model: str = "") -> AdminDone | None:
    """Post a call; its end, as `outcome` has it."""
    return await outcome(services, begin(services, op, fact), wait=wait, model=model)


def begin(services: Services, op: int, fact: Fact) -> "asyncio.Future[AdminDone]":
    """Post a call. Raises 503 while the log cannot take it, because its end would not come either."""
    if not services.loop.available:
        raise errors.of_decision(503, "log_unavailable", "")
    return services.ask(op, fact)


async def outcome(
    services: Services, answer: "asyncio.Future[AdminDone]", *, wait: bool, model: str = ""
) -> AdminDone | None:
    """The end of a call, if it has come; all the way to it with `wait`. Raises what went wrong."""
    if wait:
        await answer
    else:
        await asyncio.wait([answer], timeout=SOON_S)
    if not answer.done():
        return None
    done = answer.result()
    if done.outcome in ("done", "already"):
        return done
    raise _error(done, model, is_stopping=bool(services.loop.state.stopping_at_us))


def _error(done: AdminDone, model: str, *, is_stopping: bool) -> errors.RouterError:
    cancelled = "shutting_down" if is_stopping else "request_cancelled"
    usual = {"failed": "model_load_failed", "cancelled": cancelled, "unknown": "not_found"}
    code = done.code or usual[done.outcome]
    status = errors.CODES.get(code, 404 if done.outcome == "unknown" else 502)
    return errors.of_decision(status, code, done.reason, model=model)


def find(services: Services, caller: Caller, asked: str) -> ModelConfig:
    """The model that a client means. Raises 404 with the nearest names, or 403."""
    return resolve(services.config, services.loop.state, caller, asked).model
