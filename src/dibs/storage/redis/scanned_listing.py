"""Listings of many ids with the SCAN commands of Redis: a page costs the same, however long the queue is.

`lua/scan_ids.lua` returns the ids in the order of the server's hash tables. A mark, the start of the SHA-1 of
an id, says that the listing has returned the id; so a scan that begins again, because the server was
restarted, skips it. The cursor of the first page holds the marks of its ids. From the second page on they are
in a sorted set on the server, which expires an hour after its last use, and then the cursor is refused.
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha1
from typing import Any, Final, Self

from attrs import evolve, frozen

from dibs.errors import Refused
from dibs.model.job import Slot
from dibs.storage.redis.listing import Includes, Listing, ReadSlots, RunScript, TooLongError

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
        ordered = Listing(self.run_script, self.sources, after, until, may_copy=may_copy)
        return await ordered.page(limit, self.read_slots, self.includes)

    async def _scan(self, after: str | None, limit: int) -> tuple[list[tuple[str, Slot]], str | None]:
        scanned = ScannedListing(self.run_script, self.sources, after)
        return await scanned.page(limit, self.read_slots, self.includes)
