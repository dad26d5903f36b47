"""Ids page by page, in the order of their bytes, so that what stays is met exactly once.

Few ids are read whole for each page. Many are first copied into a sorted set, in bounded steps, which lives
for an hour; it is only a cache, made anew when it is gone. Parts of one reading share it: their cursors have
the same token.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from dibs.model.job import Slot
from dibs.model.results import State

#: Up to here ids are few.
FEW: Final = 1000

#: The hashes, sets and ordered sets whose members are the ids of a state.
SOURCES: Final[dict[State, tuple[str, ...]]] = {
    "waiting": ("hash", "waiting"),
    "scheduled": ("hash", "waiting"),
    "active": ("hash", "active"),
    "handed_off": ("set", "away"),
    "blocked": ("hash", "successors"),
    "completed": ("zset", "completed"),
    "failed": ("zset", "failed"),
    "cancelled": ("zset", "cancelled"),
}
EVERYTHING: Final = ("hash", "waiting", "hash", "active", "hash", "outcomes")

#: Runs a script of this name (ids or cut) for a queue with these words.
Ask = Callable[[str, list[Any]], Awaitable[list[Any]]]
#: Returns the slots of some ids, and the time at which they were so.
Slots = Callable[[list[str]], Awaitable[tuple[Sequence[Slot], int]]]
#: Tells whether a slot belongs on a page at a time.
Belongs = Callable[[Slot, int], bool]


class Listing:
    """One listing of one queue: where it is, where it ends, and the token that finds its cache again."""

    def __init__(
        self, ask: Ask, sources: Sequence[str], after: str | None = None, until: str | None = None
    ) -> None:
        self._token = (after or until or "").partition(":")[0] or secrets.token_hex(8)
        self._ask, self._sources = ask, sources
        self._last = (after or "").partition(":")[2].encode()
        self._until = None if until is None else until.partition(":")[2].encode()
        self._stands = ""

    async def page(
        self, limit: int, slots_of: Slots, belongs: Belongs
    ) -> tuple[list[tuple[str, Slot]], str | None]:
        """Return the next ids that belong, with their slots, and the cursor behind them or None."""
        page: list[tuple[str, Slot]] = []
        while True:
            ids = await self._next(limit + 1)
            slots, at = await slots_of(ids)
            for id, slot in zip(ids, slots, strict=True):
                if not belongs(slot, at):
                    continue
                if len(page) == limit:
                    return page, self._cursor(page[-1][0])
                page.append((id, slot))
            if len(ids) <= limit:
                return page, None

    async def _next(self, count: int) -> list[str]:
        """Return the next ids, fewer than `count` only at the end."""
        kind, found = await self._found(count)
        ids = found if kind == b"page" else sorted(id for id in set(found) if self._is_ahead(id))[:count]
        if ids:
            self._last = ids[-1]
        return [id.decode() for id in ids]

    def _is_ahead(self, id: bytes) -> bool:
        return id > self._last and (self._until is None or id <= self._until)

    async def _found(self, count: int) -> tuple[bytes, list[bytes]]:
        """Return `few` and all ids, or `page` and the next of the set, once it is whole."""
        end = b"+" if self._until is None else b"[" + self._until
        while True:
            words = [self._token, self._stands, self._last, end, count, FEW, *self._sources]
            kind, *found = await self._ask("list_ids", words)
            if kind != b"scan":
                return kind, found
            self._stands = found[0].decode()

    async def split(self, parts: int) -> list[str]:
        """Return the cursors that cut this listing into equal parts."""
        if parts == 1:
            return []
        kind, found = await self._found(1)
        if kind == b"page":
            bounds = await self._ask("split_ids", [self._token, parts])
        else:
            ids = sorted(set(found))
            bounds = [
                ids[len(ids) * part // parts - 1] for part in range(1, parts) if len(ids) * part >= parts
            ]
        return [self._cursor(id.decode()) for id in dict.fromkeys(bounds)]

    def _cursor(self, id: str) -> str:
        """Return what continues behind an id."""
        return f"{self._token}:{id}"


def is_there(slot: Slot, _now: int) -> bool:
    """Tell whether there is anything of an id."""
    return slot.current is not None or slot.outcome is not None


def belongs(state: State, slot: Slot, now: int) -> bool:
    """Tell whether a slot is in a state."""
    job = slot.current
    if state == "waiting":
        return job is not None and job.run is None
    if state == "scheduled":
        return job is not None and job.run is None and job.run_at > now
    if state == "active":
        return job is not None and job.run is not None
    if state == "handed_off":
        return job is not None and job.run is not None and job.run.lease is None
    if state == "blocked":
        return slot.successor is not None
    return slot.outcome is not None and slot.outcome.kind == state
