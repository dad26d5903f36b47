"""Everything that callers can read of a storage, as values of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import fields

from dibs.model.results import State
from dibs.storage.protocol import LATEST, Storage

STATES: Final[tuple[State, ...]] = get_args(State)


def plain(value: Any) -> Any:
    """Return a value of a storage as JSON. A field that has its default is left out.

    So a field that a later version of dibs adds does not change the value, as long as it has its default.
    """
    match value:
        case Struct():
            kept: dict[str, Any] = {}
            for field in fields(value):
                content = getattr(value, field.name)
                default = (
                    field.default_factory()
                    if field.default is NODEFAULT and (field.default_factory is not NODEFAULT)
                    else field.default
                )
                if content is not UNSET and content != default:
                    kept[field.name] = plain(content)
            tag = type(value).__struct_config__.tag
            return {"type": tag, **kept} if tag else kept
        case bytes():
            return value.decode()
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


async def contents(storage: Storage, now: int) -> dict[str, Any]:
    """Return the queues of a storage at a manual time, with their settings, jobs, states and logs."""
    names = {info.name: info.settings for info in await storage.queues()}
    return {
        name: {
            "settings": plain(settings),
            "counts": plain((await storage.counts([name], now=now))[name]),
            "states": {state: await ids_in(storage, name, state, now) for state in STATES},
            "slots": await slots(storage, name, now),
            "events": await events(storage, name, None, now),
            "end": (await storage.events(name, after=LATEST, now=now)).offset,
        }
        for name, settings in sorted(names.items())
    }


async def ids_in(storage: Storage, queue: str, state: State, now: int) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = await storage.list(queue, state, after=after, limit=7, now=now)
        found += [id for id, _ in page.items]
        if (after := page.after) is None:
            return sorted(found)


async def slots(storage: Storage, queue: str, now: int) -> dict[str, Any]:
    """Return the slot of each exported id, as `get` returns it."""
    ids: list[str] = []
    after = None
    while True:
        page = await storage.export(queue, after=after, limit=7)
        ids += [record.id for record in page.records]
        if (after := page.after) is None:
            break
    ids.sort()
    return {id: plain(slot) for id, slot in zip(ids, await storage.get(queue, ids, now=now), strict=True)}


async def events(storage: Storage, queue: str, after: str | None, now: int) -> list[Any]:
    """Return the events after an offset, each with its offset."""
    found: list[Any] = []
    while True:
        page = await storage.events(queue, after=after, limit=50, now=now)
        found += [[offset, plain(event)] for offset, event in page.events]
        after = page.offset
        if not page.events:
            return found
