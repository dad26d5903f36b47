"""Exports and listings of the ids in a state, page by page, in the order of their bytes.

An id that stays in the state during the whole listing is on exactly one page. For a queue with few ids, each
page reads all of them. More ids are copied into a sorted set on the server, in bounded steps. The set is a
cache: it expires an hour after its last use, and a page that misses it creates it again. All cursors of one
listing, and of the parts of one split, have the same token, which names the set.

The copy takes 20 us an id. So a listing of many ids that is not a part of a split is a `ScannedListing`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from dibs.model.job import Slot
from dibs.model.results import State

#: The most ids that are read without a sorted set.
MAX_UNSORTED: Final = 1000

#: The keys with the ids in a state, as arguments of list_ids.lua: Redis type, name, type, name, ...
SOURCES: Final[dict[State, tuple[str, ...]]] = {
    "waiting": ("hash", "waiting"),
    "scheduled": ("hash", "waiting"),
    "active": ("hash", "active"),
    "handed_off": ("set", "away"),
    "blocked": ("hash", "successors"),
    "completed": ("zset", "completed", "hash", "outcomes"),
    "failed": ("zset", "failed"),
    "cancelled": ("zset", "cancelled"),
}
ALL_SOURCES: Final = ("hash", "waiting", "hash", "active", "hash", "outcomes")

#: Runs the named script (list_ids or split_ids) for the queue with some arguments, and returns its reply.
RunScript = Callable[[str, list[Any]], Awaitable[list[Any]]]
#: Reads the slots of some ids, and returns them with the time of the server at the read, ms.
ReadSlots = Callable[[list[str]], Awaitable[tuple[Sequence[Slot], int]]]
#: Filters the slots of a listing: returns whether a page includes a slot at a time in ms.
Includes = Callable[[Slot, int], bool]


class TooLongError(Exception):
    """The queue has more than MAX_UNSORTED ids, and the listing may not copy them."""


class Listing:
    """One listing of one queue: the cursors between which it reads, and the token of its sorted set."""

    def __init__(
        self,
        run_script: RunScript,
        sources: Sequence[str],
        after: str | None = None,
        until: str | None = None,
        *,
        may_copy: bool = True,
    ) -> None:
        self._token = (after or until or "").partition(":")[0] or secrets.token_hex(8)
        self._run_script, self._sources = run_script, sources
        self._last_id = (after or "").partition(":")[2].encode()
        self._until = None if until is None else until.partition(":")[2].encode()
        #: Position in the copy of the ids to the sorted set, from the last reply of list_ids; "" to begin.
        #: With "ask" the script does not begin a copy.
        self._copy_position = "" if may_copy else "ask"

    async def page(
        self, limit: int, read_slots: ReadSlots, includes: Includes
    ) -> tuple[list[tuple[str, Slot]], str | None]:
        """Return up to `limit` ids with their slots, and the cursor of the next page (None at the end).

        Raise TooLongError if the page needs a copy of the ids and may not make one.
        """
        page: list[tuple[str, Slot]] = []
        while True:
            ids = await self._next_ids(limit + 1)
            slots, now = await read_slots(ids)
            for id, slot in zip(ids, slots, strict=True):
                if not includes(slot, now):
                    continue
                if len(page) == limit:
                    return page, self._cursor(page[-1][0])
                page.append((id, slot))
            if len(ids) <= limit:
                return page, None

    async def _next_ids(self, count: int) -> list[str]:
        """Return the next `count` ids; fewer only at the end of the listing."""
        kind, found = await self._list_ids(count)
        ids = found if kind == b"page" else sorted(filter(self._is_in_range, set(found)))[:count]
        if ids:
            self._last_id = ids[-1]
        return [id.decode() for id in ids]

    def _is_in_range(self, id: bytes) -> bool:
        return id > self._last_id and (self._until is None or id <= self._until)

    async def _list_ids(self, count: int) -> tuple[bytes, list[bytes]]:
        """Return the ids for a page, as (b"all", all ids of the queue) or (b"page", the next `count` ids).

        Repeat the script while it still copies ids into the sorted set.
        """
        end = b"+" if self._until is None else b"[" + self._until
        while True:
            arguments = [
                self._token, self._copy_position, self._last_id, end, count, MAX_UNSORTED, *self._sources
            ]  # fmt: skip
            kind, *found = await self._run_script("list_ids", arguments)
            if kind == b"long":
                raise TooLongError
            if kind != b"scan":
                return kind, found
            self._copy_position = found[0].decode()

    async def split(self, parts: int) -> list[str]:
        """Return the cursors that divide this listing into `parts` equal parts, or fewer for few ids."""
        if parts == 1:
            return []
        kind, found = await self._list_ids(1)
        if kind == b"page":
            bounds = await self._run_script("split_ids", [self._token, parts])
        else:
            ids = sorted(set(found))
            bounds = [
                ids[len(ids) * part // parts - 1] for part in range(1, parts) if len(ids) * part >= parts
            ]
        return [self._cursor(id.decode()) for id in dict.fromkeys(bounds)]

    def _cursor(self, id: str) -> str:
        return f"{self._token}:{id}"


def exists(slot: Slot, _now: int) -> bool:
    """Return whether a slot has a job or an outcome. The filter of an export; the time is not used."""
    return slot.current is not None or slot.outcome is not None


def is_in_state(state: State, slot: Slot, now: int) -> bool:
    """Return whether a slot is in a state at the time `now`, ms. The filter of a listing."""
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
