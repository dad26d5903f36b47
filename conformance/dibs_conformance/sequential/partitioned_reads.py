"""Test of `split`: a listing or an export is read in parts while the queue changes.

Each id that exists all the time must be in exactly one part, once. There are more ids than fit on a page. The
parts are read from last to first, and then once more; one part is a listing from its start to its end. Before
each page the queue changes: one job is removed, one is added, and one runs and ends. In the second read, each
page is read twice, as by a client that has lost the first reply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import State
from dibs.storage.protocol import Storage

NOW = 1_767_225_600_000
HOUR = 3_600_000
#: Numbers of ids: those that wait all the time, those that end before the reads, those removed during them.
WAITING, ENDED, GOING = 1020, 30, 60
PAGE = 250
PARTS = (1, 2, 7)


class BusyQueue:
    """A queue that changes before each page that is read from it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # Scripts and lengths are mixed, and the ids are enqueued out of order.
        self.waiting = {f"{'aÄz漢'[n % 4]}{n * n % 7919}-{n}" for n in range(WAITING)}
        self.ended = {f"{'eß'[n % 2]}nd {n}" for n in range(ENDED)}
        self._going = [f"{'gΩ'[n % 2]}o {n}" for n in range(GOING)]
        self._lease = ""
        self._changes = 0

    async def fill(self) -> None:
        self._lease = (await self.storage.grant(["q"], HOUR, "kit", now=NOW)).lease
        await self._enqueue(sorted(self.ended))
        await self._end(ENDED)
        ids = [*sorted(self.waiting), *self._going]
        for start in range(0, len(ids), 600):
            await self._enqueue(ids[start : start + 600])

    async def _enqueue(self, ids: Sequence[str], priority: int = 0) -> None:
        data = JobData(priority=priority)
        await self.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids], now=NOW)

    async def _end(self, limit: int) -> None:
        jobs = (await self.storage.claim("q", self._lease, limit, now=NOW)).jobs
        ends = [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]
        await self.storage.settle("q", ends, now=NOW)

    async def change(self) -> None:
        """Change the queue: remove a job, add a job that stays, and add a job that completes."""
        self._changes += 1
        if self._going:
            await self.storage.forget("q", [self._going.pop()], now=NOW)
        await self._enqueue([f"m{self._changes}"])
        await self._enqueue([f"urgent {self._changes}"], priority=9)
        await self._end(1)

    async def read(
        self, state: State | None, after: str | None, until: str | None, *, repeat: bool
    ) -> list[str]:
        """Return the ids of one part of a listing, or of an export if `state` is None.

        Change the queue before each page. With `repeat`, read each page twice.
        """
        found: list[str] = []
        # A storage with a bug may return pages without end, so the number of ids is limited.
        while len(found) < 2 * (WAITING + ENDED + GOING):
            await self.change()
            if repeat:
                await self._page(state, after, until)
            ids, after = await self._page(state, after, until)
            found += ids
            if after is None:
                break
        return found

    async def _page(
        self, state: State | None, after: str | None, until: str | None
    ) -> tuple[list[str], str | None]:
        if state is None:
            page = await self.storage.export("q", after=after, until=until, limit=PAGE)
            return [record.id for record in page.records], page.after
        listed = await self.storage.list("q", state, after=after, until=until, limit=PAGE, now=NOW)
        return [id for id, _ in listed.items], listed.after


async def check_partitioned_reads(storage: Storage) -> tuple[int, list[str]]:
    """Read an export and a listing, each in 1, 2 and 7 parts.

    Return the number of reads, and a description of each wrong result.
    """
    busy = BusyQueue(storage)
    await busy.fill()
    wrong = []
    readings: dict[State | None, set[str]] = {None: busy.waiting | busy.ended, "waiting": busy.waiting}
    for state, staying in readings.items():
        for parts in PARTS:
            name = "an export" if state is None else f"the listing {state}"
            wrong += [
                f"{name} in {parts} parts: {why}"
                for why in await find_differences(busy, state, staying, parts)
            ]
    return len(readings) * len(PARTS), wrong


async def find_differences(busy: BusyQueue, state: State | None, staying: set[str], parts: int) -> list[str]:
    """Read all parts twice. `staying` are the ids that must be in exactly one part, the same in both reads.

    Return a description of each difference.
    """
    cuts = await busy.storage.split("q", parts, state=state)
    if len(cuts) >= parts:
        return [f"{len(cuts)} cursors, expected at most {parts - 1}"]
    bounds = list(zip((None, *cuts), (*cuts, None), strict=True))[::-1]
    first, again = [
        [await busy.read(state, *part, repeat=repeat) for part in bounds] for repeat in (False, True)
    ]
    times = Counter(id for part in first for id in part if id in staying)
    missing, doubled = staying - times.keys(), [id for id, count in times.items() if count > 1]
    moved = [one for one, other in zip(first, again, strict=True) if staying & {*one} != staying & {*other}]
    return [
        *([f"{len(missing)} ids are in no part, for example {min(missing)!r}"] if missing else []),
        *([f"{len(doubled)} ids are in two parts, for example {min(doubled)!r}"] if doubled else []),
        *([f"in the second read, {len(moved)} parts had other ids"] if moved else []),
    ]
