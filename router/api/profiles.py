"""Profiles: which named set of replacements is in force, and switching to another. Counterpart: `router.selection`."""

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from eventlog.events import Event, ProfileChanged
from router import errors
from router.api.access import administrator
from router.api.reply import Json
from router.api.services import Services


class Wanted(msgspec.Struct, frozen=True):
    """Body of a switch; null or an empty name for none."""

    profile: str | None


def routes(services: Services) -> APIRouter:
    api = APIRouter(tags=["models"])

    @api.get("/api/profiles", summary="The profiles there are, and the one that is in force")
    async def list_profiles() -> Response:
        return Json(_described(services))

    @api.put("/api/profiles/active", summary='Switch to a profile: {"profile": NAME}, or null for none')
    async def switch(request: Request) -> Response:
        by = administrator(request)
        try:
            wanted = msgspec.json.decode(await request.body(), type=Wanted)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise errors.error("invalid_body", f'expected {{"profile": NAME}}: {problem}') from None
        name = wanted.profile or ""
        if name and name not in services.config.profiles:
            known = ", ".join(map(repr, services.config.profiles)) or "none"
            raise errors.error(
                "profile_not_found", f"there is no profile {name!r}; there are: {known}", param="profile"
            )
        if name != services.loop.state.profile:
            await _switch(services, name, by)
        return Json(_described(services))

    return api


async def _switch(services: Services, name: str, by: str) -> None:
    if not services.loop.available:
        raise errors.of_decision(503, "log_unavailable", "")
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(event: Event) -> None:
        if isinstance(event, ProfileChanged) and not done.done():
            done.set_result(None)

    unsubscribe = services.loop.subscribe(take)
    try:
        services.loop.post(ProfileChanged(profile=name, by=by))
        await done
    finally:
        unsubscribe()


def _described(services: Services) -> dict[str, object]:
    return {
        "active": services.loop.state.profile or None,
        "profiles": [
            {
                "name": name,
                "description": profile.description,
                "pins": {asked: target or None for asked, target in profile.pins.items()},
            }
            for name, profile in services.config.profiles.items()
        ],
    }
