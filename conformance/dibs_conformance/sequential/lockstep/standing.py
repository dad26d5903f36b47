"""The check of claim tokens: a change that admits a job must end a wait for work.

After a claim that left no admitted job, its caller waits with the token of the claim until its `next_due`. If
a job is admitted before that time, a wait with this token must return at once. The check makes such a wait,
with a timeout of 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from dibs.model.job import Job
from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs_conformance.oracle.admission import has_headroom, is_admitted
from dibs_conformance.oracle.queue import OracleQueue

if TYPE_CHECKING:
    from dibs_conformance.sequential.lockstep.core import LockstepCore


@frozen
class StandingToken:
    """The token of the newest claim in a queue, if that claim left no admitted job."""

    token: str
    next_due: int | None
    #: The handles that were open at the claim. A restart ends all waits, and its tokens need not last.
    handles: tuple[Storage, ...]

    def lasts(self, handles: list[Storage], now: int) -> bool:
        """Return whether the caller of the claim still waits at `now`."""
        same = len(handles) == len(self.handles) and all(map(is_same, handles, self.handles))
        return same and (self.next_due is None or now < self.next_due)


def is_same(one: object, other: object) -> bool:
    return one is other


def keep_token(pair: LockstepCore, queue: str, answer: ClaimResult) -> None:
    """Keep the token of a claim if a caller would wait with it: the claim left no admitted job."""
    known = pair.oracle.queue(queue)
    pair.standing.pop(queue, None)
    if known.settings.has_limits and not answer.lost and not admitted_jobs(known, pair.now):
        pair.standing[queue] = StandingToken(answer.token, answer.next_due, tuple(pair.opened.handles))


def check_token(pair: LockstepCore, queue: str) -> None:
    """Check that the kept token of a queue stands only as long as no job is admitted."""
    standing, known = pair.standing.get(queue), pair.oracle.queue(queue)
    if standing is None or known.settings.paused or not has_headroom(known):
        return
    if not admitted_jobs(known, pair.now):
        return
    del pair.standing[queue]
    storage, since = pair.storage, {queue: standing.token}
    if standing.lasts(pair.opened.handles, pair.now) and storage.capabilities.push_wakeups:
        work = storage.wait([queue], since=since, timeout=0)
        answer = pair.call("wait", {"queues": [queue], "since": since, "timeout": 0}, work)
        pair.check_laws("wait", queue, {"next_due": standing.next_due}, answer, pair.slots(queue))


def admitted_jobs(queue: OracleQueue, now: int) -> list[Job]:
    """Return the waiting jobs that are due and admitted."""
    due = (job for job in queue.jobs() if job.run is None and job.run_at <= now)
    return [job for job in due if is_admitted(queue, job, now)]
