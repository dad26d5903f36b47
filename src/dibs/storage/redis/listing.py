"""Ids page by page, in the order of their bytes, so that what stays is met exactly once.

Few ids are read whole for each page. Many are first copied into a sorted set, in bounded steps, which lives
for an hour; it is only a cache, made anew when it is gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from dibs.model.answers import State
from dibs.model.job import Slot

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

#: Runs ids.lua for a queue with these words.
Ask = Callable[[list[Any]], Awaitable[list[Any]]]


class Listing:
    """One listing of one queue: where it is, and the token that finds its cache again."""

    def __init__(self, ask: Ask, sources: Sequence[str], after: str | None) -> None:
        token, _, last = (after or "").partition(":")
        self._ask, self._sources = ask, sources
        self._token = token or secrets.token_hex(8)
        self._last = last.encode()
        self._stands = ""

    async def next(self, count: int) -> list[str]:
        """Return the next ids, fewer than `count` only at the end."""
        while True:
            reply = await self._ask([self._token, self._stands, self._last, count, FEW, *self._sources])
            kind, *found = reply
            if kind == b"scan":
                self._stands = found[0].decode()
                continue
            ids = found if kind == b"page" else sorted(id for id in set(found) if id > self._last)[:count]
            if ids:
                self._last = ids[-1]
            return [id.decode() for id in ids]

    def cursor(self, id: str) -> str:
        """Return what continues behind an id."""
        return f"{self._token}:{id}"


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
