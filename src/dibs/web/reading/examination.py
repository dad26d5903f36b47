"""The findings of `dibs doctor` about the storage, made in the background and shared by all viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import define, field

from dibs.doctor import Report, examine_open
from dibs.storage.protocol import Storage
from dibs.web.reading.shared import SharedCall

#: Seconds for which an examination is shown.
MAX_AGE: Final = 60.0
#: Seconds that a view of the page waits for an examination. A later one appears by a live update.
PATIENCE: Final = 1.0


@define(eq=False)
class Examination:
    """The latest report of an examination."""

    _storage: Callable[[], Awaitable[Storage]]
    _call: SharedCall[Report] = field(init=False)
    _latest: Report | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._call = SharedCall(self._examine)

    async def report(self) -> Report | None:
        """Return a report of at most MAX_AGE seconds, else the one before, or None. Raise StorageError."""
        limit = asyncio.timeout(PATIENCE)
        try:
            async with limit:
                return await self._call.answer(MAX_AGE)
        except TimeoutError:
            if not limit.expired():
                raise
        return self._latest

    async def _examine(self) -> Report:
        self._latest = await examine_open(await self._storage())
        return self._latest
