"""Capacity and fairness: which queues of a worker process are served now, and with how many jobs.

A worker process has 100 capacity units, and each run takes the size of its handler. A queue whose next job
does not fit keeps those behind it waiting, but only after a count has shown that the job exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol, TypeVar

from attrs import define, field

from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import QueueState

logger = logging.getLogger("dibs.worker")

#: The capacity units of one worker process.
UNITS: Final = 100


class Capacity:
    """The capacity units of a process: taken before a claim is sent, given back when a run has ended."""

    def __init__(self, units: int = UNITS) -> None:
        self.units = units
        self.free = units

    def take(self, units: int) -> None:
        self.free -= units

    def give(self, units: int) -> None:
        self.free += units


def run_size(size: int, units: int = UNITS) -> int:
    """Return the units that one run takes. A run larger than the process takes all units."""
    return max(1, min(size, units))


class Contender(Protocol):
    """A queue that competes for capacity, as `share_out` sees it."""

    #: Units that one run takes, at most UNITS.
    size: int
    #: A queue with a higher priority is served first.
    priority: int
    #: The number of its latest service; a higher number is more recent, 0 is never.
    last_served: int

    @property
    def startable(self) -> int | None:
        """How many of its jobs can start now at most; None is unknown."""


C = TypeVar("C", bound=Contender)


def share_out(queues: Sequence[C], free: int) -> tuple[list[tuple[C, int]], C | None]:
    """Return the number of jobs that each queue may start, and the queue that must wait for more capacity.

    The order is priority, then least recent service; queues of equal priority share the free units equally.
    No queue behind one whose next job does not fit is served, so that one gets its units as runs end.
    """
    grants: list[tuple[C, int]] = []
    if len(queues) == 1:
        # The usual case when a job comes to an idle worker: skip the sorting.
        return grants, _share_equally(queues, free, grants)[1]
    order = sorted(queues, key=lambda queue: (-queue.priority, queue.last_served))
    for _, group in groupby(order, key=lambda queue: queue.priority):
        free, stuck = _share_equally(list(group), free, grants)
        if stuck is not None:
            return grants, stuck
        if free <= 0:
            break
    return grants, None


def _share_equally(peers: Sequence[C], free: int, grants: list[tuple[C, int]]) -> tuple[int, C | None]:
    for position, queue in enumerate(peers):
        if queue.size > free:
            # Not stuck, only late: the units went to the queues before it, and next time it is the first.
            return free, queue
        number = max(1, free // (len(peers) - position) // queue.size)
        if queue.startable is not None:
            number = min(number, queue.startable)
        grants.append((queue, number))
        free -= number * queue.size
    return free, None


class Shares(NamedTuple):
    """The result of sharing out the free capacity in one step of the worker loop."""

    #: How many jobs of a queue may start now.
    grants: dict[QueueState, int]
    #: Whether the process may claim at all.
    claiming: bool
    #: Whether the process may prefetch: not while a queue waits for more capacity.
    prefetching: bool


class OversizedQueues:
    """The queues whose next job does not fit, to be counted in one request: capacity is kept free only for
    jobs that exist.
    """

    def __init__(
        self, storage: Storage, wake_worker: Callable[[], None], back_off: Callable[[QueueState], None]
    ) -> None:
        self._storage = storage
        self._wake_worker = wake_worker
        self._back_off = back_off
        self._to_count: list[QueueState] = []

    def add(self, queue: QueueState, now: float) -> None:
        """Count a queue with the next request, or later if it was counted a moment ago."""
        queue.readiness.ready = False
        if pause := queue.readiness.recount_in(now):
            queue.readiness.snoozed = True
            asyncio.get_running_loop().call_later(pause, self._wake, queue)
        else:
            queue.round_trips.counting = True
            self._to_count.append(queue)

    def take(self) -> Sequence[QueueState]:
        """Return the queues to count now, and forget them."""
        taken, self._to_count = self._to_count, []
        return taken

    async def count(self, queues: Sequence[QueueState]) -> None:
        """Ask the storage which of these queues have due jobs. Never raises."""
        try:
            counts = await self._storage.counts([queue.name for queue in queues])
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next count may succeed
            logger.warning("counting the jobs of large handlers failed, trying again: %s", error)
            for queue in queues:
                queue.readiness.wake()
                self._back_off(queue)
        else:
            for queue in queues:
                found = counts[queue.name]
                queue.readiness.counted(due=found.waiting > found.scheduled or found.approximate)
        finally:
            for queue in queues:
                queue.round_trips.counting = False

    def _wake(self, queue: QueueState) -> None:
        queue.readiness.wake()
        self._wake_worker()


@define(eq=False)
class Fairness:
    """Shares out the free capacity of a process over its queues."""

    _queues: Collection[QueueState]
    _capacity: Capacity
    _oversized: OversizedQueues
    #: Counts the services, see QueueState.last_served.
    _served: int = field(default=0, init=False)

    def share(self, now: float, *, claiming: bool) -> Shares:
        """Return how many jobs of each queue may start now: without `claiming`, only prefetched runs."""
        free = self._capacity.free
        wanting = [
            queue for queue in self._queues if queue.prefetch.runs or (claiming and queue.can_claim(now))
        ]
        granted, stuck = share_out(wanting, free)
        while stuck is not None and not stuck.has_jobs and free > 0:
            # Count the queue before capacity is kept free for it, and serve the others until then.
            self._oversized.add(stuck, now)
            wanting = [queue for queue in wanting if queue is not stuck]
            granted, stuck = share_out(wanting, free)
        grants = dict(granted)
        if claiming and stuck is None:
            self._add_settling(grants, free, now)
        return Shares(grants, claiming, claiming and stuck is None)

    def _add_settling(self, grants: dict[QueueState, int], free: int, now: float) -> None:
        """Grant the rest to queues with settlements to send: a claim costs no extra round trip there."""
        settling = [
            queue
            for queue in self._queues
            if queue.round_trips.outbox and not queue.readiness.ready and queue.can_send(now)
        ]
        if not settling:
            return
        left = free - sum(queue.size * number for queue, number in grants.items())
        for queue in settling:
            if queue.size <= left:
                grants[queue] = left // queue.size
                left -= queue.size * grants[queue]

    def serve(self, queue: QueueState, number: int) -> None:
        """Take the capacity for `number` runs of a queue, and put the queue behind its peers."""
        if number:
            self._served += 1
            queue.last_served = self._served
            self._capacity.take(number * queue.size)
