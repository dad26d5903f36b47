"""Exports and listings of the ids in a state, page by page, in the order of their bytes.

An id that stays in the state during the whole listing is on exactly one page. For a queue with few ids, each
page reads all of them. More ids are copied into a sorted set on the server, in bounded steps. The set is a
cache: it expires an hour after its last use, and a page that misses it creates it again. All cursors of one
listing, and of the parts of one split, have the same token, which names the set.

The copy takes 20 us an id. So a listing of many ids that is not a part of a split is a `ScannedListing`.

Listings of many ids use the SCAN commands of Redis: a page costs the same, however long the queue is.
`lua/scan_ids.lua` returns the ids in the order of the server's hash tables. A mark, the start of the SHA-1 of
an id, says that the listing has returned the id; so a scan that begins again, because the server was
restarted, skips it. The cursor of the first page holds the marks of its ids. From the second page on they are
in a sorted set on the server, which expires an hour after its last use, and then the cursor is refused.
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha1
from typing import Any, Final, Self

from attrs import evolve, frozen

from dibs.errors import Refused
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


class SortedListing:
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


#: The most ids on a page. The marks of a first page are arguments of each call.
MAX_LIMIT: Final = 1000
#: The most ids that a page reads. A page of a rare state, as of the scheduled jobs among many waiting ones,
#: may end before it is full.
MAX_READ: Final = 2000
#: Bytes of a mark.
MARK: Final = 12
_CURSOR: Final = re.compile(
    r"scan:([0-9a-f]{16})?:(\d{1,15}):([0-9a-f]{12})?:(\d):(\d{1,20}):([A-Za-z0-9_-]*={0,2})"
)


@frozen
class Cursor:
    """The place of a listing between two calls of scan_ids.lua."""

    #: Name of the set of marks; "" before the second page.
    token: str = ""
    #: Number of the last call of the listing.
    call: int = 0
    #: The server process that returned the position; "" before the first call.
    process: str = ""
    #: Number of the source that is scanned, from 1; 0 after the last id.
    source: int = 1
    #: Position of the scan of the source.
    position: str = "0"
    #: Marks of the ids of the first page, MARK bytes each; empty after the second page was read.
    marks: bytes = b""

    @classmethod
    def parse(cls, text: str, sources: int) -> Self:
        """Return the cursor that `str` wrote. Raise Refused for another text."""
        found = _CURSOR.fullmatch(text)
        if found is None or not 1 <= int(found[4]) <= sources:
            raise Refused("after is no cursor of this listing; begin the listing again", field="after")
        marks = urlsafe_b64decode(found[6] + "=" * (-len(found[6]) % 4))
        return cls(found[1] or "", int(found[2]), found[3] or "", int(found[4]), found[5], marks)

    def __str__(self) -> str:
        marks = urlsafe_b64encode(self.marks).decode().rstrip("=")
        return f"scan:{self.token}:{self.call}:{self.process}:{self.source}:{self.position}:{marks}"


class UnknownProcessError(Exception):
    """The server forbids INFO, so nothing tells that the positions of a scan are those of its process.

    Or it accepts no writes, so it keeps no marks.
    """


def mark_of(id: str) -> bytes:
    return sha1(id.encode(), usedforsecurity=False).digest()[:MARK]


class ScannedListing:
    """A page of a listing by scans. `after` is the cursor of the page before it; None for the first page."""

    def __init__(self, run_script: RunScript, sources: Sequence[str], after: str | None = None) -> None:
        self._run_script, self._sources = run_script, sources
        self._at = Cursor() if after is None else Cursor.parse(after, len(sources) // 2)
        self._is_first = after is None
        self._new_token = secrets.token_hex(8)

    async def page(
        self, limit: int, read_slots: ReadSlots, includes: Includes
    ) -> tuple[list[tuple[str, Slot]], str | None]:
        """Return up to `limit` ids with their slots, and the cursor of the next page (None at the end)."""
        page: list[tuple[str, Slot]] = []
        read = 0
        while len(page) < limit and self._at.source and read < MAX_READ:
            ids = await self._next_ids(min(limit - len(page), MAX_LIMIT))
            slots, now = await read_slots(ids)
            page += [(id, slot) for id, slot in zip(ids, slots, strict=True) if includes(slot, now)]
            # A call that finds only marked ids returns none of the up to MAX_READ that it has read.
            read += max(len(ids), 1)
        if not self._at.source:
            return page, None
        marks = b"".join(mark_of(id) for id, _ in page) if self._is_first else b""
        return page, str(evolve(self._at, marks=marks))

    async def _next_ids(self, wanted: int) -> list[str]:
        """Return up to `wanted` ids that were not returned yet. Raise Refused for an expired cursor."""
        at = self._at
        marks = [at.marks[start : start + MARK].hex() for start in range(0, len(at.marks), MARK)]
        place = [at.token, self._new_token, at.call, at.process, at.source, at.position, wanted]
        page = "first" if self._is_first else "later"
        reply: list[Any] = await self._run_script(
            "scan_ids", [*place, page, len(marks), *marks, *self._sources]
        )
        if reply == [b"expired"]:
            raise Refused(
                "after is a cursor that has expired, as an hour has passed since its last use; "
                "begin the listing again",
                field="after",
            )
        token, call, process, source, position, *found = reply
        if self._is_first and not process:
            raise UnknownProcessError
        ids = [id.decode() for id in found]
        self._at = Cursor(
            "" if self._is_first else token.decode(),
            int(call),
            process.decode(),
            int(source),
            position.decode(),
        )
        if self._is_first:
            # The calls for a first page write no set, so each gets the marks of the calls before it.
            self._at = evolve(self._at, call=0, marks=at.marks + b"".join(map(mark_of, ids)))
        return ids


@frozen
class StateListing:
    """The listing of the ids in one state of a queue, by scans or in the order of the ids."""

    run_script: RunScript
    sources: Sequence[str]
    read_slots: ReadSlots
    includes: Includes

    async def page(
        self, after: str | None, until: str | None, limit: int
    ) -> tuple[list[tuple[str, Slot]], str | None]:
        """Return a page and the cursor of the next one (None at the end).

        A listing of few ids, a part of a split, and a page of more than MAX_LIMIT ids are in order.
        """
        if after is not None and after.startswith("scan:"):
            return await self._scan(after, limit)
        may_scan = after is None and until is None and limit <= MAX_LIMIT
        try:
            return await self._sort(after, until, limit, may_copy=not may_scan)
        except TooLongError:
            pass
        try:
            return await self._scan(None, limit)
        except UnknownProcessError:
            return await self._sort(after, until, limit, may_copy=True)

    async def _sort(
        self, after: str | None, until: str | None, limit: int, *, may_copy: bool
    ) -> tuple[list[tuple[str, Slot]], str | None]:
        ordered = SortedListing(self.run_script, self.sources, after, until, may_copy=may_copy)
        return await ordered.page(limit, self.read_slots, self.includes)

    async def _scan(self, after: str | None, limit: int) -> tuple[list[tuple[str, Slot]], str | None]:
        scanned = ScannedListing(self.run_script, self.sources, after)
        return await scanned.page(limit, self.read_slots, self.includes)
