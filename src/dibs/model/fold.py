"""The fold law (contract 3): a list of updates, kept in the room of one.

What is enqueued while a run is active is one list of updates with two readings. The run *ends*: the
list applied, in order, to an empty id. The run *comes back*: the list applied, in order, to the job
that returned. A successor holds both readings without the list:

- run_at for "ends" is a scalar, because the first update counts whole, whatever it says;
- run_at for "comes back" is a clamp: any sequence of always, never, later and earlier is
  r -> min(max(r, lo), hi) for some lo and hi, and the clamps are closed under the four rules;
- data is the newest that replaces; `replaces` says whether there was one beyond the first;
- the counts are zeroed if any update said so.
"""

from __future__ import annotations

from msgspec.structs import replace

from dibs.model.job import Job, NewJob, Successor
from dibs.model.requests import RunAtRule, Update


def start(new: NewJob, how: Update, run_at: int, now: int, number: int) -> Successor:
    """Return the fold of a list of one update."""
    lo, hi = narrow_clamp(None, None, how.run_at, run_at)
    return Successor(
        data=new.data,
        replaces=how.data,
        run_at=run_at,
        lo=lo,
        hi=hi,
        resets=how.resets,
        enqueued_at=now,
        seq=number,
        first=number,
        revision=number,
    )


def add(successor: Successor, new: NewJob, how: Update, run_at: int, number: int) -> Successor:
    """Return the fold of the list with one more update at its end."""
    lo, hi = narrow_clamp(successor.lo, successor.hi, how.run_at, run_at)
    return replace(
        successor,
        data=new.data if how.data else successor.data,
        replaces=successor.replaces or how.data,
        run_at=move_run_at(successor.run_at, how.run_at, run_at),
        lo=lo,
        hi=hi,
        resets=successor.resets or how.resets,
        revision=number,
        enqueues=successor.enqueues + 1,
    )


def move_run_at(old: int, rule: RunAtRule, new: int) -> int:
    """Return the run_at of a waiting job after an update."""
    if rule == "always":
        return new
    if rule == "later":
        return max(old, new)
    if rule == "earlier":
        return min(old, new)
    return old


def narrow_clamp(lo: int | None, hi: int | None, rule: RunAtRule, at: int) -> tuple[int | None, int | None]:
    """Return the clamp that does what (lo, hi) did and then what the rule does with `at`."""
    if rule == "always":
        return at, at
    if rule == "later":
        # max(., at) of both ends; an open top stays open, an open bottom becomes `at`.
        return at if lo is None else max(lo, at), None if hi is None else max(hi, at)
    if rule == "earlier":
        return None if lo is None else min(lo, at), at if hi is None else min(hi, at)
    return lo, hi


def clamp(run_at: int, lo: int | None, hi: int | None) -> int:
    """Return min(max(run_at, lo), hi), an open end leaving its side alone."""
    if lo is not None and run_at < lo:
        run_at = lo
    if hi is not None and run_at > hi:
        run_at = hi
    return run_at


def job_after_end(id: str, successor: Successor) -> Job:
    """Return the waiting job that the list makes of an empty id."""
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
    """Return what the list makes of a job that has come back and waits again."""
    job = replace(
        job,
        data=successor.data if successor.replaces else job.data,
        run_at=clamp(job.run_at, successor.lo, successor.hi),
        revision=successor.revision,
        enqueues=job.enqueues + successor.enqueues,
    )
    return with_zero_counts(job) if successor.resets else job


def with_zero_counts(job: Job) -> Job:
    """Return the job with its counts at 0."""
    return replace(job, attempts=0, retries=0, stalls=0, timeouts=0, error=None)
