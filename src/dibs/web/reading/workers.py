"""The workers that hold jobs, found by a bounded scan of the active jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define, field, frozen

from dibs.web.reading.source import Budget, Source

#: Bounds of the scan of one page: active jobs and seconds.
MAX_SCANNED: Final = 2_000
MAX_SECONDS: Final = 1.5
#: Active jobs that one call reads. Each comes with its payload, up to 1 MiB.
PAGE_SIZE: Final = 100
#: Jobs that the page lists for one worker, those with the oldest claim first.
MAX_LISTED: Final = 10


@frozen
class HeldJob:
    """A job that a worker holds."""

    queue: str
    id: str
    claimed_at: int
    attempt: int
    handed_off: bool
    cancel_requested: bool


@frozen
class WorkerRow:
    """A worker by its name, and the jobs that it holds."""

    name: str
    active: int
    handed_off: int
    queues: tuple[str, ...]
    #: Times of the earliest and the latest claim.
    earliest: int
    latest: int
    jobs: tuple[HeldJob, ...]


@frozen
class WorkersPage:
    """The workers that hold jobs, by name."""

    rows: tuple[WorkerRow, ...]
    #: Number of active jobs that were read, and the number that the storage counts.
    scanned: int
    total: int


@define(eq=False)
class _Holder:
    jobs: list[HeldJob] = field(factory=list)


async def read_workers(source: Source, _params: Mapping[str, str]) -> WorkersPage:
    """Return the holders of active jobs."""
    storage = await source.storage()
    counts = await source.census.counts(seconds=MAX_SECONDS)
    busy = {name: each.active for name, each in counts.items() if each.active}
    budget = Budget(MAX_SCANNED, MAX_SECONDS)
    holders: dict[str, _Holder] = {}
    for queue in sorted(busy):
        after: str | None = None
        while not budget.is_spent:
            page = await storage.list(queue, "active", after=after, limit=PAGE_SIZE)
            budget.read += len(page.items)
            for id, slot in page.items:
                job = slot.current
                if job is None or job.run is None:
                    continue
                run = job.run
                held = HeldJob(
                    queue, id, run.claimed_at, job.attempts, run.lease is None, run.cancel_requested
                )
                holders.setdefault(run.holder, _Holder()).jobs.append(held)
            if (after := page.after) is None:
                break
    rows = tuple(_row(name, holder.jobs) for name, holder in sorted(holders.items()))
    return WorkersPage(rows, budget.read, sum(busy.values()))


def _row(name: str, jobs: list[HeldJob]) -> WorkerRow:
    jobs.sort(key=lambda job: (job.claimed_at, job.queue, job.id))
    return WorkerRow(
        name=name,
        active=sum(not job.handed_off for job in jobs),
        handed_off=sum(job.handed_off for job in jobs),
        queues=tuple(sorted({job.queue for job in jobs})),
        earliest=jobs[0].claimed_at,
        latest=max(job.claimed_at for job in jobs),
        jobs=tuple(jobs[:MAX_LISTED]),
    )
