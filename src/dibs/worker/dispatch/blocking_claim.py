"""The blocking claim of an idle worker process: a claim that waits in the storage until there is a job.

Without it a job costs a wake-up and a claim. One blocking claim is enough for a process: it waits for the
queue that is likeliest to get the next job, and the other queues keep their wake-ups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, cast
from uuid import uuid4

from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.dispatch.round_trip import ClaimWait, RoundTrip

logger = logging.getLogger("dibs.worker")

#: Seconds that a claim blocks at most. A job whose token was lost is found after this time, and a claim on a
#: dead connection after this time and the timeout of a reply.
CLAIM_WAIT: Final = 5.0
#: Jobs that a blocking claim may return: one job, and a sign whether there are more. It takes jobs also while
#: this process is held up and another could run them, so it takes no more.
MAX_JOBS: Final = 2
#: Seconds by which a timer may fire early, before the job is due.
TIMER_TOLERANCE: Final = 0.001


class IdleClaim:
    """The blocking claim of a worker process, at most one, sent while no run is in flight."""

    def __init__(self, storage: Storage, wake_worker: Callable[[], None]) -> None:
        self._storage, self._wake_worker = storage, wake_worker
        self._id_prefix, self._count = uuid4().hex, 0
        self._queue: QueueState | None = None
        self._trip: RoundTrip | None = None
        self._ended_early = False
        #: Wakes the worker when the next job of the queue falls due.
        self._due_timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a blocking claim is in flight."""
        return self._trip is not None and self._trip.reply is None

    def choose_queue(self, queues: Collection[QueueState], now: float) -> QueueState | None:
        """Return the queue to wait for: of those without jobs, the one with the latest job.

        Return None if the storage has no blocking claims, or a queue is ready to be claimed from.
        """
        if not self._storage.capabilities.blocking_claim or any(queue.readiness.ready for queue in queues):
            return None
        idle = [queue for queue in queues if queue.needs_wakeup and queue.can_send(now)]
        return max(idle, key=lambda queue: queue.readiness.active_until, default=None)

    def next_wait(self) -> ClaimWait:
        """Return the wait of the next blocking claim, with an id of its own."""
        self._count += 1
        return ClaimWait(f"{self._id_prefix}-{self._count}", CLAIM_WAIT)

    def sent(self, queue: QueueState, trip: RoundTrip, now: float) -> None:
        """Remember the claim that was sent, and wake the worker when a scheduled job of the queue falls due.

        The timeout of the claim does not serve for that: Redis checks its timeouts ten times a second.
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
        """Return whether to end the wait: a job is due, the lease is another, or another queue is ready."""
        queue = self._queue
        if self._ended_early or self._trip is None or queue is None:
            return False
        if self._trip.lease != lease or queue.readiness.is_due(now):
            return True
        return any(other.readiness.ready for other in queues if other is not queue)

    async def end_early(self) -> None:
        """End the wait, so that the claim returns at once. Never raises: without this it returns later."""
        trip, queue, self._ended_early = self._trip, self._queue, True
        if trip is None or trip.wait is None or queue is None:
            return
        try:
            await cast("BlockingClaims", self._storage).wake_claim(queue.name, trip.wait.claim_id)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning("%s: ending the blocking claim failed: %s", queue.name, error)
