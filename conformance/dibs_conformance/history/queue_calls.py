"""The random calls on whole queues: settings, prune, imports, listings, exports, counts and the log."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

from dibs.model.job import Job, JobData, OutcomeRetention, Slot
from dibs.model.requests import SettingsPatch, StartRate
from dibs.model.results import EventPage, ExportPage, ExportRecord, ListPage, State
from dibs.storage.protocol import Storage
from dibs_conformance.verbs.list import MAX_PAGES, EndlessPages

SHORT = OutcomeRetention(completed=1, failed=1, cancelled=1)
#: Patches for `configure`. The log keeps all events of a run, and keys outlive it.
PATCHES = (
    SettingsPatch(paused=True),
    *(SettingsPatch(paused=False),) * 4,
    SettingsPatch(max_active=1),
    *(SettingsPatch(max_active=2),) * 2,
    *(SettingsPatch(max_active=None),) * 3,
    *(SettingsPatch(retention=SHORT),) * 2,
    SettingsPatch(retention=OutcomeRetention()),
    SettingsPatch(log_level="all"),
    SettingsPatch(log_age=43_200_000, max_active=None),
    *(SettingsPatch(fail_handler=True),) * 2,
    SettingsPatch(fail_handler=False, log_results=100),
    SettingsPatch(request_key_age=7_200_000, paused=False),
)
#: More patches, for storages with the capability `limits`. A rate allows some starts in the time of a run.
UNLIMITED = SettingsPatch(per_key=None, rate=None, key_rate=None)
LIMIT_PATCHES = (
    SettingsPatch(per_key=1),
    SettingsPatch(per_key=2),
    SettingsPatch(rate=StartRate(1, 5, 3)),
    SettingsPatch(key_rate=StartRate(3, 10, 2)),
    *(UNLIMITED,) * 4,
)
LISTED_STATES: tuple[State, ...] = ("waiting", "active")
PAGE_SIZES = (2, 100, 1000)
#: The number of parts into which `split` divides an export.
PARTS = 3


class QueueCalls:
    """Makes the calls of one client on one queue."""

    def __init__(self, storage: Storage, random: Random, queue: str) -> None:
        self._storage, self._random, self._queue = storage, random, queue
        #: The offset from which the client reads the log on; None for the start.
        self._offset: str | None = None

    async def configure(self) -> None:
        patches = (*PATCHES, *LIMIT_PATCHES) if self._storage.capabilities.limits else PATCHES
        await self._storage.configure(self._queue, self._random.choice(patches))

    async def prune(self) -> None:
        await self._storage.prune(self._queue, self._random.choice((3, 1000)))

    async def import_job(self, id: str) -> None:
        """Import a waiting job under an id that other clients use at about the same time."""
        now = time.time_ns() // 1000
        data = JobData(payload=f"imported {self._random.randrange(1000)}".encode())
        job = Job(
            id=id, data=data, run_at=now // 1000, enqueued_at=now // 1000, seq=now, first=now, revision=now
        )
        await self._storage.import_(self._queue, [ExportRecord(id=id, slot=Slot(current=job))])

    async def list_ids(self) -> None:
        state, limit = self._random.choice(LISTED_STATES), self._random.choice(PAGE_SIZES)

        async def page(after: str | None) -> ListPage:
            return await self._storage.list(self._queue, state, after=after, limit=limit)

        await read_pages(page, None)

    async def export(self) -> None:
        await self._export_part(None, None)

    async def export_parts(self) -> None:
        cursors = await self._storage.split(self._queue, PARTS)
        for after, until in pairwise((None, *cursors, None)):
            await self._export_part(after, until)

    async def _export_part(self, after: str | None, until: str | None) -> None:
        limit = self._random.choice(PAGE_SIZES)

        async def page(at: str | None) -> ExportPage:
            return await self._storage.export(self._queue, after=at, until=until, limit=limit)

        await read_pages(page, after)

    async def counts(self) -> None:
        await self._storage.counts([self._queue])

    async def read_log(self) -> None:
        """Read the log from where the client stopped, or sometimes from its start."""
        after = None if self._random.random() < 0.2 else self._offset
        page = await self._storage.events(self._queue, after=after, limit=self._random.choice((10, 1000)))
        self._offset = page.offset


async def read_pages(
    page: Callable[[str | None], Awaitable[ListPage | ExportPage]], after: str | None
) -> None:
    """Read pages from a cursor to the last one."""
    for _ in range(MAX_PAGES):
        after = (await page(after)).after
        if after is None:
            return
    raise EndlessPages(f"a reading does not end after {MAX_PAGES} pages")


async def read_whole_log(storage: Storage, queue: str) -> None:
    """Read the log from its start until a page is empty."""
    page: EventPage | None = None
    for _ in range(MAX_PAGES):
        page = await storage.events(queue, after=page.offset if page else None, limit=1000)
        if not page.events:
            return
    raise EndlessPages(f"the log of {queue!r} does not end after {MAX_PAGES} pages")
