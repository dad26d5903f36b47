"""The oracle's rules of keys and limits: the due jobs that a claim may take, and the bounds of `next_due`."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from dibs.model.job import Job
from dibs_conformance.oracle.queue import OracleQueue, first_start


@frozen
class NotLater:
    """The bounds of an expected `next_due`: later than `now`, and at the latest `latest`.

    `latest` is None if no later claim can take more without another change. Then None is correct, too.
    """

    now: int
    latest: int | None

    def allows(self, actual: int | None) -> bool:
        if actual is None:
            return self.latest is None
        return actual > self.now and (self.latest is None or actual <= self.latest)


def opens_at(queue: OracleQueue, key: str | None) -> int:
    """Return the first ms at which the rates of the queue allow a start of a job with this key."""
    time = first_start(queue.settings.rate, queue.starts.of_queue)
    if key is None:
        return time
    return max(time, first_start(queue.settings.key_rate, queue.starts.by_key.get(key, ())))


def has_headroom(queue: OracleQueue) -> bool:
    """Return whether `max_active` of the queue allows another run."""
    most = queue.settings.max_active
    return most is None or len(queue.held()) < most


def has_room(queue: OracleQueue, key: str | None) -> bool:
    """Return whether fewer than `per_key` runs of a key are active under leases."""
    most = queue.settings.per_key
    if key is None or most is None:
        return True
    return sum(job.data.key == key for job, _ in queue.held()) < most


def is_admitted(queue: OracleQueue, job: Job, now: int) -> bool:
    """Return whether a due job is admitted: its key has room, and the rates allow a start."""
    return has_room(queue, job.data.key) and opens_at(queue, job.data.key) <= now


def admitted_jobs(queue: OracleQueue, now: int) -> list[Job]:
    """Return the waiting jobs that are due and admitted."""
    due = (job for job in queue.jobs() if job.run is None and job.run_at <= now)
    return [job for job in due if is_admitted(queue, job, now)]


def next_due(queue: OracleQueue, now: int) -> int | NotLater | None:
    """Return the `next_due` of a claim that has taken its jobs: the exact time, or its bounds with limits.

    A claim that reached `max_active` need not know a time: the end of a run wakes its caller.
    """
    waiting = [job for job in queue.jobs() if job.run is None]
    if not queue.settings.has_limits:
        return first_after(now, (job.run_at for job in waiting))
    if not has_headroom(queue):
        return NotLater(now, None)
    openings = (max(j.run_at, opens_at(queue, j.data.key)) for j in waiting if has_room(queue, j.data.key))
    return NotLater(now, first_after(now, openings))


def first_after(now: int, times: Iterable[int]) -> int | None:
    return min((time for time in times if time > now), default=None)
