"""The blocking claim of an idle worker process: a claim that waits in the storage until there is a job.

Without a blocking claim, a worker needs two replies for a job: a wake-up, then the reply to a claim. A
process has one blocking claim, for the queue that most likely gets the next job. The other queues use
wake-ups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, cast
from uuid import uuid4

from dibs.client.calls.error_info import summarize_exception
from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.dispatch.round_trip import ClaimWait, RoundTrip

logger = logging.getLogger("dibs.worker")

#: Longest time that a claim blocks, in seconds. A job whose wake-up was lost is found after this time. A dead
#: connection is noticed after this time plus the timeout of a reply.
CLAIM_WAIT: Final = 5.0
#: Largest number of jobs that a blocking claim returns. Two jobs show that there may be more. A larger number
#: would take jobs from other processes while this process is too busy to run them.
MAX_JOBS: Final = 2
#: Seconds added to a timer for a scheduled job: a timer may fire early, before the job is due.
TIMER_TOLERANCE: Final = 0.001


class IdleClaim:
    """The one blocking claim of a worker process.

    The class chooses the queue of the claim, and decides when the claim must end before its timeout.

    `wake_worker` is called when the next scheduled job of the queue falls due.
    """

    def __init__(self, storage: Storage, wake_worker: Callable[[], None]) -> None:
        self._storage, self._wake_worker = storage, wake_worker
        self._id_prefix, self._count = uuid4().hex, 0
        self._queue: QueueState | None = None
        self._trip: RoundTrip | None = None
        self._ended_early = False
        #: The timer that calls `wake_worker`.
        self._due_timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """True while a blocking claim is in flight."""
        return self._trip is not None and self._trip.reply is None

    def choose_queue(self, queues: Collection[QueueState], now: float) -> QueueState | None:
        """Return the queue for a blocking claim: the queue without jobs that had a job most recently.

        Return None if the storage has no blocking claims, or if a queue is ready for an ordinary claim.
        """
        if not self._storage.capabilities.blocking_claim or any(queue.readiness.ready for queue in queues):
            return None
        idle = [queue for queue in queues if queue.needs_wakeup and queue.can_send(now)]
        return max(idle, key=lambda queue: queue.readiness.active_until, default=None)

    def next_claim_wait(self) -> ClaimWait:
        """Return a unique id and the timeout for the next blocking claim."""
        self._count += 1
        return ClaimWait(f"{self._id_prefix}-{self._count}", CLAIM_WAIT)

    def record_sent(self, queue: QueueState, trip: RoundTrip, now: float) -> None:
        """Record a blocking claim that was sent, and set a timer for the next scheduled job of its queue.

        The timeout of the claim would be too coarse for this job: Redis checks timeouts ten times a second.
        """
        self._queue, self._trip, self._ended_early = queue, trip, False
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        due_at = queue.readiness.due_at
        if due_at is not None and due_at < now + CLAIM_WAIT:
            seconds = max(0.0, due_at - now) + TIMER_TOLERANCE
            self._due_timer = asyncio.get_running_loop().call_later(seconds, self._wake_worker)

    def must_end(self, queues: Collection[QueueState], lease: str | None, now: float) -> bool:
        """Return whether to end the blocking claim now.

        The claim must end if a scheduled job of its queue is due, if the lease has changed, or if another
        queue is ready: the process then sends an ordinary claim.
        """
        queue = self._queue
        if self._ended_early or self._trip is None or queue is None:
            return False
        if self._trip.lease != lease or queue.readiness.is_due(now):
            return True
        return any(other.readiness.ready for other in queues if other is not queue)

    async def end_early(self) -> None:
        """Make the blocking claim return at once. Errors are logged: the claim then ends at its timeout."""
        trip, queue, self._ended_early = self._trip, self._queue, True
        if trip is None or trip.wait is None or queue is None:
            return
        try:
            await cast("BlockingClaims", self._storage).wake_claim(queue.name, trip.wait.claim_id)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning("%s: ending the blocking claim failed: %s", queue.name, summarize_exception(error))
