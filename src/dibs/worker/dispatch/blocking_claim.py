"""The blocking claim of an idle worker process: a claim that waits in the storage until there is a job.

Without a blocking claim, a worker needs two replies for a job: a wake-up, then the reply to a claim. A
process has one blocking claim, for all its queues if the storage can. Else it is for the queue that most
likely gets the next job, and the other queues use wake-ups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, cast
from uuid import uuid4

from attrs import define, field

from dibs.model.error_text import summarize_exception
from dibs.storage.abilities import ManyQueues
from dibs.storage.checks import MOST_QUEUES
from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.dispatch.fairness import Capacity, Fairness
from dibs.worker.dispatch.in_flight import InFlightRuns
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.dispatch.requests import Requests
from dibs.worker.dispatch.round_trip import ClaimWait, Reply, RoundTrip, error_reply, send

logger = logging.getLogger("dibs.worker")

#: Longest time that a claim blocks, in seconds. A job whose wake-up was lost is found after this time. A dead
#: connection is noticed after this time plus the timeout of a reply.
CLAIM_WAIT: Final = 5.0
#: Largest number of jobs that a blocking claim returns. Two jobs show that there may be more. A larger number
#: would take jobs from other processes while this process is too busy to run them.
MAX_JOBS: Final = 2
#: Seconds added to a timer for a scheduled job: a timer may fire early, before the job is due.
TIMER_TOLERANCE: Final = 0.001


@define(eq=False)
class IdleClaim:
    """The one blocking claim of a worker process.

    The class chooses the queues of the claim, and decides when the claim must end before its timeout. A
    storage with the capability `many_queues` has one claim for all queues; else the claim is for one queue.
    """

    _storage: Storage
    _capacity: Capacity
    _fairness: Fairness
    _in_flight: InFlightRuns
    #: Applies the replies.
    _requests: Requests
    #: Called when the next scheduled job of a queue falls due.
    _wake_worker: Callable[[], None]
    _id_prefix: str = field(factory=lambda: uuid4().hex, init=False)
    _count: int = field(default=0, init=False)
    #: The queues of the claim in flight; empty if there is none.
    _queues: Sequence[QueueState] = field(default=(), init=False)
    #: The lease of the claim in flight; None if there is none.
    lease: str | None = field(default=None, init=False)
    #: True while a claim for all idle queues is in flight.
    covers_all: bool = field(default=False, init=False)
    _claim_id: str = field(default="", init=False)
    _ended_early: bool = field(default=False, init=False)
    #: The time at which the first scheduled job of the queues falls due; None if none is known.
    _due_at: float | None = field(default=None, init=False)
    #: The timer that calls `wake_worker`.
    _due_timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @property
    def is_waiting(self) -> bool:
        """True while a blocking claim is in flight."""
        return bool(self._queues)

    @property
    def can_cover_all(self) -> bool:
        """True if one blocking claim may wait for several queues."""
        capabilities = self._storage.capabilities
        return capabilities.blocking_claim and capabilities.many_queues

    def choose_queues(self, idle: Sequence[QueueState], now: float) -> Sequence[QueueState]:
        """Return the queues for a blocking claim: all idle queues, or the queue of the most recent job.

        `idle` are the queues without a known job and without a request in flight. Return none if the storage
        has no blocking claims.
        """
        if not self._storage.capabilities.blocking_claim:
            return ()
        if self.can_cover_all:
            together = [queue for queue in idle if not queue.alone]
            if len(together) > 1:
                return together[:MOST_QUEUES]
        waiting = (queue for queue in idle if queue.can_send(now))
        latest = max(waiting, key=lambda queue: queue.readiness.active_until, default=None)
        return () if latest is None else (latest,)

    def send(
        self, queues: Sequence[QueueState], lease: str, now: float, *, covers_all: bool
    ) -> Coroutine[Any, Any, None]:
        """Begin a blocking claim, and return the coroutine that sends it and applies its reply.

        `covers_all` is whether no other queue is idle.
        """
        self._count += 1
        self._claim_id = f"{self._id_prefix}-{self._count}"
        self._queues, self.lease, self._ended_early = queues, lease, False
        self._set_due_timer(now)
        free = self._capacity.free // max(queue.size for queue in queues)
        limit = max(1, min(MAX_JOBS, free, self._in_flight.claimable))
        if len(queues) == 1:
            trip = RoundTrip((), lease, limit, limit, ClaimWait(self._claim_id, CLAIM_WAIT))
            self._begin(queues[0], trip)
            return self._claim_one(queues[0], trip)
        self.covers_all = covers_all
        return self._claim_any(queues, lease, limit)

    def _set_due_timer(self, now: float) -> None:
        """Set a timer for the next scheduled job of the queues.

        The timeout of the claim would be too coarse for this job: Redis checks timeouts ten times a second.
        """
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        times = (queue.readiness.due_at for queue in self._queues)
        self._due_at = min((due_at for due_at in times if due_at is not None), default=None)
        if self._due_at is not None and self._due_at < now + CLAIM_WAIT:
            seconds = max(0.0, self._due_at - now) + TIMER_TOLERANCE
            self._due_timer = asyncio.get_running_loop().call_later(seconds, self._wake_worker)

    def _begin(self, queue: QueueState, trip: RoundTrip) -> None:
        self._in_flight.expected_jobs += trip.limit
        self._fairness.take_capacity(queue, trip.reserved)
        self._requests.add(queue, trip)

    async def _claim_one(self, queue: QueueState, trip: RoundTrip) -> None:
        trip.reply = await send(self._storage, queue.name, trip)
        self._finish()
        self._requests.handle_reply(queue, trip)

    async def _claim_any(self, queues: Sequence[QueueState], lease: str, limit: int) -> None:
        # The claim may return jobs of any queue: the capacity for the largest ones is taken until the reply.
        units = limit * max(queue.size for queue in queues)
        self._capacity.take(units)
        self._in_flight.expected_jobs += limit
        try:
            replies = await self._ask(queues, lease, limit)
        finally:
            self._finish()
            self._capacity.give_back(units)
            self._in_flight.expected_jobs -= limit
        jobs = sum(len(reply.claim.jobs) for reply in replies.values() if reply.claim is not None)
        for queue in queues:
            if (reply := replies.get(queue.name)) is not None:
                number = len(reply.claim.jobs) if reply.claim is not None else 0
                # A claim that reached the limit of all queues may have left jobs in a queue of its jobs.
                trip = RoundTrip((), lease, number, number if number and jobs >= limit else number + 1)
                trip.reply = reply
                self._begin(queue, trip)
                self._requests.handle_reply(queue, trip)

    async def _ask(self, queues: Sequence[QueueState], lease: str, limit: int) -> Mapping[str, Reply]:
        """Return the reply of each queue that the claim looked into. Never raises an error of the storage."""
        names = [queue.name for queue in queues]
        try:
            claims = await cast("ManyQueues", self._storage).claim_blocking_any(
                names, lease, limit, claim_id=self._claim_id, timeout=CLAIM_WAIT
            )
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning(
                "the blocking claim of %d queues failed, sending a claim for each: %s",
                len(names), summarize_exception(error),
            )  # fmt: skip
            reply = error_reply(error, (), claims=True, shared=True)
            return dict.fromkeys(names, reply)
        return {name: Reply(claim=claim) for name, claim in claims.items()}

    def _finish(self) -> None:
        """Record that the reply to the blocking claim has arrived."""
        self._queues, self.lease, self.covers_all = (), None, False

    def must_end(self, lease: str | None, now: float, *, any_ready: bool) -> bool:
        """Return whether to end the blocking claim now.

        The claim must end if a scheduled job of its queues is due, if the lease has changed, or if a queue is
        ready: the process then sends an ordinary claim.
        """
        if self._ended_early or not self.is_waiting:
            return False
        return any_ready or self.lease != lease or (self._due_at is not None and self._due_at <= now)

    async def end_early(self) -> None:
        """Make the blocking claim return at once. Errors are logged: the claim then ends at its timeout."""
        self._ended_early = True
        if not self.is_waiting:
            return
        name = self._queues[0].name
        try:
            await cast("BlockingClaims", self._storage).wake_claim(name, self._claim_id)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning("%s: ending the blocking claim failed: %s", name, summarize_exception(error))
