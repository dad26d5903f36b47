"""The requests of a worker process: which queues one step of the worker loop sends a request for.

A storage with the capability `many_queues` gets one request for all queues of a step, other storages one
request for each queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from attrs import define, field

from dibs.model.wakeup import EVALUATIONS
from dibs.storage.checks import MOST_QUEUES
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.fairness import Fairness, Shares
from dibs.worker.dispatch.flow_wakeups import fold_wake_ups
from dibs.worker.dispatch.in_flight import InFlightRuns
from dibs.worker.dispatch.queue_state import (
    MIN_BATCH,
    MIN_SHARE,
    PREFETCH_TIMEOUT,
    SETTLEMENT_DELAY,
    QueueState,
)
from dibs.worker.dispatch.round_trip import Reply, RoundTrip, send, send_shared

logger = logging.getLogger("dibs.worker")

#: Most shared requests in flight that only prefetch jobs. Two keep the storage and this process busy.
MAX_LARGE: Final = 2
#: Most shared requests in flight if one has a claim whose jobs can start at once.
MAX_URGENT: Final = 3
#: The largest used part of what the process may prefetch that leaves room for a large claim.
MOST_USED: Final = 1.0 - MIN_SHARE


class RequestDraft(NamedTuple):
    """A request for one queue that a step may send: its outbox, and a claim."""

    queue: QueueState
    #: The number of jobs of the claim that can start at once.
    free: int
    #: The number of further jobs of the claim.
    prefetch: int


@define(eq=False)
class Requests:
    """The requests in flight, and the choice of the next ones.

    While shared requests are in flight, another one is sent only if it is large, or if it has a claim whose
    jobs can start at once. Otherwise the queues would get replies one after the other, and so send many small
    requests.
    """

    _storage: Storage
    _in_flight: InFlightRuns
    _fairness: Fairness
    #: Called with each reply, in the order of the requests of its queue.
    _apply_reply: Callable[[QueueState, RoundTrip, Reply], None]
    #: Runs a coroutine as a task, and a step of the worker loop after it.
    _start_task: Callable[[Coroutine[Any, Any, None]], None]
    _wake_worker: Callable[[], None]
    #: The queues with requests in flight.
    _busy: dict[QueueState, None] = field(factory=dict, init=False)
    #: The number of requests in flight that several queues may share.
    _shared: int = field(default=0, init=False)

    @property
    def trips(self) -> Iterable[RoundTrip]:
        return (trip for queue in self._busy for trip in queue.round_trips.in_flight)

    def has_room(self, queues: Iterable[QueueState]) -> bool:
        """Return whether the prefetched runs of these queues leave room for claims of other short runs."""
        return self._shared < MAX_LARGE and self._used_share(queues) <= MOST_USED

    def _used_share(self, queues: Iterable[QueueState]) -> float:
        """Return the used part of what the process may prefetch, by these queues and by claims in flight.

        A request for a queue alone may wait for a lock, so its claim does not count.
        """
        holding = [queue for queue in queues if queue.prefetch.runs]
        busy = [queue for queue in self._busy if not queue.alone]
        return sum(queue.prefetch_share for queue in dict.fromkeys((*holding, *busy)))

    def send_due(
        self,
        queues: Sequence[QueueState],
        free: Mapping[QueueState, int],
        shares: Shares,
        lease: str | None,
        now: float,
    ) -> None:
        """Send the requests of these queues that are due. `free` is the number of jobs that can start."""
        drafts = self._draft(queues, free, shares, now)
        if not self._storage.capabilities.many_queues:
            for draft in drafts:
                self._send([draft], lease)
            return
        for draft in [draft for draft in drafts if draft.queue.alone]:
            self._send([draft], lease)
        together = [draft for draft in drafts if not draft.queue.alone]
        # The settlements before it make evaluations due, so that one request settles a node and claims them.
        together.sort(key=lambda draft: draft.queue.name == EVALUATIONS)
        if together and self._may_send(together):
            for first in range(0, len(together), MOST_QUEUES):
                self._send(together[first : first + MOST_QUEUES], lease, shared=True)

    def _may_send(self, drafts: Sequence[RequestDraft]) -> bool:
        if not self._shared:
            return True
        if self._shared < MAX_URGENT and any(map(self._is_urgent, drafts)):
            return True
        settling = sum(len(draft.queue.round_trips.outbox) for draft in drafts)
        prefetching = sum(draft.prefetch for draft in drafts)
        return self._shared < MAX_LARGE and min(settling, prefetching) >= MIN_BATCH

    def _is_urgent(self, draft: RequestDraft) -> bool:
        """Return whether the jobs of this claim should not wait for the replies in flight.

        Short runs wait while other claims are in flight: their jobs take the capacity soon.
        """
        return draft.free > 0 and not (draft.queue.prefetch.is_short and self._in_flight.expected_jobs)

    # -- drafts --------------------------------------------------------------------------------------

    def _draft(
        self, queues: Sequence[QueueState], free: Mapping[QueueState, int], shares: Shares, now: float
    ) -> Sequence[RequestDraft]:
        prefetch = self._plan_prefetch(queues, now) if shares.prefetching else {}
        drafts = []
        for queue in queues:
            draft = RequestDraft(queue, free.get(queue, 0) if shares.claiming else 0, prefetch.get(queue, 0))
            if draft.prefetch or (queue.can_send(now) and not self._delay_settlements(queue, draft, now)):
                drafts.append(draft)
        return [draft for draft in drafts if draft.free or draft.prefetch or draft.queue.round_trips.outbox]

    def _delay_settlements(self, queue: QueueState, draft: RequestDraft, now: float) -> bool:
        was_delayed = queue.round_trips.delayed_until
        if draft.free or not queue.delays_settlements(now, draft.prefetch):
            return False
        if not was_delayed:
            asyncio.get_running_loop().call_later(SETTLEMENT_DELAY, self.wake_queue, queue)
        return True

    def wake_queue(self, queue: QueueState) -> None:
        """Make the next step look at a queue, and schedule that step."""
        queue.note_change()
        self._wake_worker()

    def _plan_prefetch(self, queues: Sequence[QueueState], now: float) -> Mapping[QueueState, int]:
        """Return the number of jobs that each ready queue prefetches, the least recently served first.

        All queues of the process together prefetch as much as one queue would.
        """
        ready = [queue for queue in queues if queue.readiness.ready]
        if not ready:
            return {}
        used = self._used_share(queues)
        if len(ready) > 1:
            ready.sort(key=lambda queue: (-queue.priority, queue.last_served))
        plan: dict[QueueState, int] = {}
        for queue in ready:
            if used > MOST_USED:
                break
            jobs = queue.prefetch.jobs_to_prefetch(used)
            if jobs and len(ready) > 1:
                jobs = min(jobs, queue.prefetch.step)
            if jobs and (queue.can_send(now) or queue.can_send_second(now, jobs)):
                plan[queue] = jobs
                used += jobs / queue.prefetch.most
        return plan

    # -- round trips ---------------------------------------------------------------------------------

    def _send(self, drafts: Sequence[RequestDraft], lease: str | None, *, shared: bool = False) -> None:
        trips = [(draft.queue, self._begin(draft, lease)) for draft in drafts]
        if trips := [(queue, trip) for queue, trip in trips if trip.limit or trip.settling]:
            self._shared += shared
            self._start_task(self._make_round_trips(trips, shared=shared))

    def _begin(self, draft: RequestDraft, lease: str | None) -> RoundTrip:
        """Take the settlements and the capacity for a request of one queue."""
        queue, free, _ = draft
        limit = min(free + draft.prefetch, self._in_flight.claimable) if lease is not None else 0
        trips = queue.round_trips
        fold_wake_ups(trips.outbox)
        settling, trips.outbox, trips.delayed_until = trips.outbox, [], 0.0
        trip = RoundTrip(settling, lease if limit else None, free if limit else 0, limit)
        self._in_flight.expected_jobs += limit
        self._fairness.take_capacity(queue, trip.reserved)
        if limit:
            self._fairness.note_served(queue)
        if limit or settling:
            self.add(queue, trip)
        return trip

    def add(self, queue: QueueState, trip: RoundTrip) -> None:
        """Add a round trip that is in flight from now on."""
        queue.round_trips.in_flight.append(trip)
        self._busy[queue] = None

    async def _make_round_trips(self, trips: Sequence[tuple[QueueState, RoundTrip]], *, shared: bool) -> None:
        """Send one request, then apply the replies that have arrived, in the order of their requests."""
        try:
            await self._exchange(trips)
        finally:
            self._shared -= shared
        for queue, trip in trips:
            self.handle_reply(queue, trip)

    async def _exchange(self, trips: Sequence[tuple[QueueState, RoundTrip]]) -> None:
        if len(trips) == 1:
            [(queue, trip)] = trips
            trip.reply = await send(self._storage, queue.name, trip)
            return
        replies = await send_shared(self._storage, [(queue.name, trip) for queue, trip in trips])
        for (_, trip), reply in zip(trips, replies, strict=True):
            trip.reply = reply
        if replies[0].error is not None:
            logger.warning(
                "a request for %d queues failed, sending a request for each: %s",
                len(trips), replies[0].reason,
            )  # fmt: skip

    def handle_reply(self, queue: QueueState, trip: RoundTrip) -> None:
        """Apply the reply of `trip` and of requests behind it, unless a request before it has no reply."""
        for arrived, reply in queue.round_trips.replies():
            self._apply(queue, arrived, reply)
        if queue.round_trips.is_second(trip):
            asyncio.get_running_loop().call_later(PREFETCH_TIMEOUT, self._apply_second, queue, trip)

    def _apply_second(self, queue: QueueState, trip: RoundTrip) -> None:
        """Apply the reply of a second request if the first one takes too long, for example at a lock."""
        if trip.reply is not None and queue.round_trips.is_second(trip):
            queue.round_trips.in_flight.pop()
            self._apply(queue, trip, trip.reply)
            self._wake_worker()

    def _apply(self, queue: QueueState, trip: RoundTrip, reply: Reply) -> None:
        if not queue.round_trips.in_flight:
            self._busy.pop(queue, None)
        if reply.error is None:
            queue.alone = False
        elif reply.shared:
            queue.alone = True
        queue.note_change()
        self._apply_reply(queue, trip, reply)
