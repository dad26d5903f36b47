"""The fold: it merges all enqueues that arrive for an id during its run into one value, the successor.

The enqueues are a list of updates (contract 3, The fold law). If the run ends, the list is applied in order
to an empty id. If the run comes back to the queue, for example by a retry, the list is applied in order to
the returned job. A successor stores both results in constant space, without the list:

- `run_at`, for a run that ends, is one time: on an empty id the first update that creates is taken whole.
- `lo` and `hi`, for a run that comes back, are a clamp: any sequence of the rules always, never, later and
  earlier maps a time r to min(max(r, lo), hi) for some lo and hi.
- `data` is the newest data of an update with `data=True`, else the data of the first update. `replaces` is
  True if an update had `data=True`.
- `resets` is True if any update resets the counts.
- `creates` is False if every update is update-only (`Update(create=False)`). Such a list makes no job on an
  empty id; its range joins the range of the run that ends.
"""

from __future__ import annotations

from msgspec.structs import replace

from dibs.model.job import NO_DATA, Job, NewJob, Successor
from dibs.model.requests import RunAtRule, Update


def start_successor(new: NewJob, update: Update, run_at: int, now: int, number: int) -> Successor:
    """Return the successor that the first enqueue during a run makes. `number` is its revision and seq."""
    lo, hi = narrow_clamp(None, None, update.run_at, run_at)
    return Successor(
        data=new.data if update.create else NO_DATA,
        replaces=update.replaces,
        run_at=run_at if update.create else 0,
        lo=lo,
        hi=hi,
        resets=update.resets,
        enqueued_at=now,
        seq=number if update.create else 0,
        first=number,
        revision=number,
        creates=update.create,
    )


def add_update(
    successor: Successor, new: NewJob, update: Update, run_at: int, now: int, number: int
) -> Successor:
    """Return the successor with one more enqueue merged into it. `number` is the revision of that enqueue."""
    if update.create and not successor.creates:
        # On an empty id the updates before this one do nothing, so this one counts whole.
        successor = replace(
            successor, data=new.data, run_at=run_at, enqueued_at=now, seq=number, creates=True
        )
    lo, hi = narrow_clamp(successor.lo, successor.hi, update.run_at, run_at)
    return replace(
        successor,
        data=new.data if update.replaces else successor.data,
        replaces=successor.replaces or update.replaces,
        run_at=move_run_at(successor.run_at, update.run_at, run_at) if successor.creates else 0,
        lo=lo,
        hi=hi,
        resets=successor.resets or update.resets,
        revision=number,
        enqueues=successor.enqueues + 1,
    )


def move_run_at(old: int, rule: RunAtRule, new: int) -> int:
    """Return the run_at of a waiting job after an update. `old` is that of the job, `new` of the update."""
    if rule == "always":
        return new
    if rule == "later":
        return max(old, new)
    if rule == "earlier":
        return min(old, new)
    return old


def narrow_clamp(lo: int | None, hi: int | None, rule: RunAtRule, at: int) -> tuple[int | None, int | None]:
    """Return the clamp with the same effect as the clamp (lo, hi) followed by the rule with the time `at`."""
    if rule == "always":
        return at, at
    if rule == "later":
        # Both bounds become max(bound, at). A missing lower bound becomes `at`; a missing upper one stays so.
        return at if lo is None else max(lo, at), None if hi is None else max(hi, at)
    if rule == "earlier":
        return None if lo is None else min(lo, at), at if hi is None else min(hi, at)
    return lo, hi


def clamp(run_at: int, lo: int | None, hi: int | None) -> int:
    """Return min(max(run_at, lo), hi), where a bound of None does not apply."""
    if lo is not None and run_at < lo:
        run_at = lo
    if hi is not None and run_at > hi:
        run_at = hi
    return run_at


def job_after_end(id: str, successor: Successor) -> Job:
    """Return the job that waits after the run has ended: the successor alone, with all counts 0."""
    return Job(
        id=id,
        data=successor.data,
        run_at=successor.run_at,
        enqueued_at=successor.enqueued_at,
        seq=successor.seq,
        first=successor.first,
        revision=successor.revision,
        enqueues=successor.enqueues,
    )


def job_after_return(job: Job, successor: Successor) -> Job:
    """Return the job that waits after the run came back: the returned job with the updates applied to it."""
    job = replace(
        job,
        data=successor.data if successor.replaces else job.data,
        run_at=clamp(job.run_at, successor.lo, successor.hi),
        revision=successor.revision,
        enqueues=job.enqueues + successor.enqueues,
    )
    return with_zero_counts(job) if successor.resets else job


def joined_range(job: Job, successor: Successor | None) -> Job:
    """Return the job as it ends. A successor that creates nothing adds its range and number to it."""
    if successor is None or successor.creates:
        return job
    return replace(job, revision=successor.revision, enqueues=job.enqueues + successor.enqueues)


def with_zero_counts(job: Job) -> Job:
    """Return the job with attempts, retries, stalls and timeouts at 0, and without its error."""
    return replace(job, attempts=0, retries=0, stalls=0, timeouts=0, error=None)
