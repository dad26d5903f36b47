"""A reading in parts while others write: what is there all the while is in exactly one part, once.

The ids are more than fit on a page, and more than a storage may treat as a few. Parts are read the last one
first, and then once more; before each page something comes, goes, runs and ends.
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
#: Ids that wait all the while, that have ended and stay so, and that are removed meanwhile.
WAITING, ENDED, GOING = 1020, 30, 60
PAGE = 250
PARTS = (2, 7)


class BusyQueue:
    """A queue in which much goes on."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # Scripts and lengths are mixed, and no id comes where it stands in any order.
        self.waiting = {f"{'aÄz漢'[n % 4]}{n * n % 7919}-{n}" for n in range(WAITING)}
        self.ended = {f"{'eß'[n % 2]}nd {n}" for n in range(ENDED)}
        self._going = [f"{'gΩ'[n % 2]}o {n}" for n in range(GOING)]
        self._lease = ""
        self._stirred = 0

    async def gather(self) -> None:
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

    async def stir(self) -> None:
        """One is removed, one comes to stay, one comes, runs and ends."""
        self._stirred += 1
        if self._going:
            await self.storage.forget("q", [self._going.pop()], now=NOW)
        await self._enqueue([f"m{self._stirred}"])
        await self._enqueue([f"urgent {self._stirred}"], priority=9)
        await self._end(1)

    async def read(self, state: State | None, after: str | None, until: str | None) -> list[str]:
        """Read a part of a listing, or of an export, while others write."""
        found: list[str] = []
        # A part that goes on beyond all there is has no end.
        while len(found) < 2 * (WAITING + ENDED + GOING):
            await self.stir()
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


async def parts_of_readings(storage: Storage) -> tuple[int, list[str]]:
    """Read an export and a listing in parts; return how many readings there were, and what was wrong."""
    busy = BusyQueue(storage)
    await busy.gather()
    wrong = []
    readings: dict[State | None, set[str]] = {None: busy.waiting | busy.ended, "waiting": busy.waiting}
    for state, staying in readings.items():
        for parts in PARTS:
            said = "an export" if state is None else f"the listing {state}"
            wrong += [f"{said} in {parts} parts: {why}" for why in await faults(busy, state, staying, parts)]
    return len(readings) * len(PARTS), wrong


async def faults(busy: BusyQueue, state: State | None, staying: set[str], parts: int) -> list[str]:
    """Read all parts twice, and return what the contract says otherwise."""
    cuts = await busy.storage.split("q", parts, state=state)
    if len(cuts) >= parts:
        return [f"{len(cuts)} cursors, the most is {parts - 1}"]
    bounds = list(zip((None, *cuts), (*cuts, None), strict=True))[::-1]
    first, again = [[await busy.read(state, *part) for part in bounds] for _ in range(2)]
    times = Counter(id for part in first for id in part if id in staying)
    missing, doubled = staying - times.keys(), [id for id, count in times.items() if count > 1]
    moved = [one for one, other in zip(first, again, strict=True) if staying & {*one} != staying & {*other}]
    return [
        *([f"{len(missing)} ids are in no part, as {min(missing)!r}"] if missing else []),
        *([f"{len(doubled)} ids are met twice, as {min(doubled)!r}"] if doubled else []),
        *([f"read once more, {len(moved)} parts had other ids"] if moved else []),
    ]
