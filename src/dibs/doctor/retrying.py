"""The errors for which jobs of a queue wait to run again, read from a bounded number of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from dibs.model.job import Error, Job
from dibs.model.results import Counts, State
from dibs.storage.protocol import Storage

#: Entries that a look at a queue reads of each listing. Each comes with its payload, up to 1 MiB.
MOST_READ: Final = 25
#: Ids that a group names.
MOST_IDS: Final = 3
#: Retrying jobs from which on a queue may be failing as a whole, and their least share of its jobs that are
#: due, active or retrying. Due jobs that are retrying count twice there, so half of all jobs is a third.
MANY: Final = 10
LARGE_SHARE: Final = 0.25


@frozen
class RetryingGroup:
    """Retrying jobs of one queue with the same type of error."""

    queue: str
    #: The type of the error, as in "httpx.ConnectError"; "" without an error, or if no job was found.
    type: str
    #: The error of the job that came back last; None if it has none.
    error: Error | None
    #: Number of jobs. It is an estimate if not all retrying jobs of the queue were read.
    count: int
    #: The earliest time of a next run, in ms since the epoch; 0 if no job was found.
    next_run: int
    ids: tuple[str, ...]


def is_failing(counts: Counts) -> bool:
    """Return whether a large part of the jobs that a queue has to run now came back from a failed run."""
    due = counts.waiting - counts.scheduled
    return counts.retrying >= MANY and counts.retrying > LARGE_SHARE * (counts.retrying + due + counts.active)


async def group_retrying(
    storage: Storage, queue: str, counts: Counts, most: int = MOST_READ
) -> list[RetryingGroup]:
    """Return the retrying jobs of a queue by type of error, the largest group first.

    Read up to `most` scheduled jobs and, if these are too few, up to `most` waiting ones.
    """
    if not counts.retrying:
        return []
    jobs = await _read(storage, queue, counts.retrying, most)
    if not jobs:
        return [RetryingGroup(queue, "", None, counts.retrying, 0, ())]
    by_type: dict[str, list[Job]] = {}
    for job in jobs:
        by_type.setdefault(job.error.type if job.error else "", []).append(job)
    factor = max(1.0, counts.retrying / len(jobs))
    groups = [_group(queue, type, found, factor) for type, found in by_type.items()]
    return sorted(groups, key=lambda group: (-group.count, group.type))


def _group(queue: str, type: str, jobs: Sequence[Job], factor: float) -> RetryingGroup:
    # A job that comes back draws the newest seq of its queue.
    newest = max(jobs, key=lambda job: job.seq)
    ids = tuple(job.id for job in jobs[:MOST_IDS])
    return RetryingGroup(
        queue, type, newest.error, round(len(jobs) * factor), min(job.run_at for job in jobs), ids
    )


async def _read(storage: Storage, queue: str, wanted: int, most: int) -> list[Job]:
    found: dict[str, Job] = {}
    states: tuple[State, ...] = ("scheduled", "waiting")
    for state in states:
        page = await storage.list(queue, state, limit=most)
        for id, slot in page.items:
            if slot.current is not None and slot.current.is_retrying:
                found[id] = slot.current
        if len(found) >= min(wanted, most):
            break
    return list(found.values())
