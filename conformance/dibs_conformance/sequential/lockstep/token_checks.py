"""The check of claim tokens: a change that admits a job must end a wait for work.

After a claim that left no admitted job, its caller waits with the token of the claim until its `next_due`. If
a job is admitted before that time, a wait with this token must return at once. The check makes such a wait,
through the handle of the claim.
"""

from __future__ import annotations

from typing import Final

from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs_conformance.oracle.admission import admitted_jobs, has_headroom
from dibs_conformance.sequential.lockstep.core import LockstepCore
from dibs_conformance.sequential.lockstep.standing import StandingToken

#: Seconds in which a storage gets the message about a change through another connection.
PATIENCE: Final = 3.0


class TokenChecks(LockstepCore):
    """The lockstep with a check of the tokens of claims after each change."""

    def after_write(self, *queues: str) -> None:
        super().after_write(*queues)
        for queue in queues:
            self.check_token(queue)

    def keep_token(self, queue: str, answer: ClaimResult, storage: Storage) -> None:
        """Keep the token of a claim of `storage` if a caller would wait with it: it left no admitted job.

        A storage that does not listen yet has no token. Then a wait returns one, and begins to listen.
        """
        known = self.oracle.queue(queue)
        self.standing.pop(queue, None)
        if not known.settings.has_limits or answer.lost or not storage.capabilities.push_wakeups:
            return
        # A read after the claim may have closed its handle, and opened another one in its place.
        if storage in self.opened.handles and not admitted_jobs(known, self.now):
            token = answer.token or self.run_coroutine(storage.wait([queue], timeout=0)).since[queue]
            self.standing[queue] = StandingToken(token, answer.next_due, storage)

    def check_token(self, queue: str) -> None:
        """Check that the kept token of a queue stands only as long as no job is admitted."""
        standing, known = self.standing.get(queue), self.oracle.queue(queue)
        if standing is None or known.settings.paused or not has_headroom(known):
            return
        if not admitted_jobs(known, self.now):
            return
        del self.standing[queue]
        if standing.lasts(self.opened.handles, self.now):
            since = {queue: standing.token}
            work = standing.storage.wait([queue], since=since, timeout=PATIENCE)
            answer = self.call("wait", {"queues": [queue], "since": since, "timeout": PATIENCE}, work)
            self.check_laws("wait", queue, {"next_due": standing.next_due}, answer, self.slots(queue))
