"""The check of claim tokens: a change that admits a job must end a wait for work.

After a claim that left no admitted job, its caller waits with the token of the claim until its `next_due`. If
a job is admitted before that time, a wait with this token must return at once. The check makes such a wait,
through the handle of the claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from dibs.model.job import Job
from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs_conformance.oracle.admission import has_headroom, is_admitted
from dibs_conformance.oracle.queue import OracleQueue

if TYPE_CHECKING:
    from dibs_conformance.sequential.lockstep.core import LockstepCore


#: Seconds in which a storage gets the message about a change through another connection.
PATIENCE: Final = 3.0


@frozen
class StandingToken:
    """The token of the newest claim in a queue, if that claim left no admitted job."""

    token: str
    next_due: int | None
    #: The handle of the claim. After a restart it is another one: a restart ends all waits.
    storage: Storage

    def lasts(self, handles: list[Storage], now: int) -> bool:
        """Return whether the caller of the claim still waits at `now`."""
        is_open = any(handle is self.storage for handle in handles)
        return is_open and (self.next_due is None or now < self.next_due)


def keep_token(pair: LockstepCore, queue: str, answer: ClaimResult) -> None:
    """Keep the token of a claim if a caller would wait with it: the claim left no admitted job.

    A storage that does not listen yet has no token. Then a wait returns one, and begins to listen.
    """
    known, storage = pair.oracle.queue(queue), pair.newest_handle
    pair.standing.pop(queue, None)
    if not known.settings.has_limits or answer.lost or not storage.capabilities.push_wakeups:
        return
    if not admitted_jobs(known, pair.now):
        token = answer.token or pair.run_coroutine(storage.wait([queue], timeout=0)).since[queue]
        pair.standing[queue] = StandingToken(token, answer.next_due, storage)


def check_token(pair: LockstepCore, queue: str) -> None:
    """Check that the kept token of a queue stands only as long as no job is admitted."""
    standing, known = pair.standing.get(queue), pair.oracle.queue(queue)
    if standing is None or known.settings.paused or not has_headroom(known):
        return
    if not admitted_jobs(known, pair.now):
        return
    del pair.standing[queue]
    if standing.lasts(pair.opened.handles, pair.now):
        since = {queue: standing.token}
        work = standing.storage.wait([queue], since=since, timeout=PATIENCE)
        answer = pair.call("wait", {"queues": [queue], "since": since, "timeout": PATIENCE}, work)
        pair.check_laws("wait", queue, {"next_due": standing.next_due}, answer, pair.slots(queue))


def admitted_jobs(queue: OracleQueue, now: int) -> list[Job]:
    """Return the waiting jobs that are due and admitted."""
    due = (job for job in queue.jobs() if job.run is None and job.run_at <= now)
    return [job for job in due if is_admitted(queue, job, now)]
