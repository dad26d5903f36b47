"""Capacity and fairness: how many jobs each queue of a worker process may start now.

A worker process has 100 capacity units, and each run takes as many units as its handler has as `size`. If the
next job of a queue does not fit, the queues behind it wait until enough runs have ended. The worker first
counts the jobs of such a queue, so that no capacity stays free for a job that does not exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

from attrs import define, field

from dibs.client.calls.handler import PROCESS_UNITS
from dibs.model.error_text import summarize_exception
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.execution.invocation import Invocation

logger = logging.getLogger("dibs.worker")


class Capacity:
    """The capacity units of a process. Units are taken before a claim is sent, and given back after a run."""

    def __init__(self, units: int = PROCESS_UNITS) -> None:
        self.units = units
        self.free = units

    def take(self, units: int) -> None:
        self.free -= units

    def give_back(self, units: int) -> None:
        self.free += units


def run_size(size: int, units: int = PROCESS_UNITS) -> int:
    """Return the units that a run of a handler with this `size` takes: at most all units of the process."""
    return max(1, min(size, units))


class Contender(Protocol):
    """The attributes of a queue that `share_capacity` needs."""

    #: Capacity units that one run takes, from 1 to PROCESS_UNITS.
    size: int
    #: Queues with a higher priority start jobs first.
    priority: int
    #: A number that grows with each service of any queue, so the queue with the lowest number has waited
    #: longest. 0 for a queue that was never served.
    last_served: int
    #: True if the queue starts prefetched short runs and no other jobs.
    only_starts: bool

    @property
    def startable(self) -> int | None:
        """The largest number of jobs of the queue that can start now; None if it is unknown."""


C = TypeVar("C", bound=Contender)


def share_capacity(queues: Sequence[C], free: int) -> tuple[list[tuple[C, int]], C | None]:
    """Return the number of jobs that each queue may start, and the queue that must wait for more capacity.

    Queues are served by priority, then by least recent service. Queues of equal priority share the `free`
    units equally. Sharing stops at the first queue whose next job does not fit: units that become free later
    go to this queue first.

    If all queues of a priority have prefetched short runs, each takes all units that its runs need: the runs
    of one queue then end together, and one request settles them.
    """
    grants: list[tuple[C, int]] = []
    if len(queues) == 1:
        # The usual case when a job comes to an idle worker needs no sorting.
        return grants, _share_equally(queues, free, grants)[1]
    order = sorted(queues, key=lambda queue: (-queue.priority, queue.last_served))
    for _, group in groupby(order, key=lambda queue: queue.priority):
        free, oversized = _share_equally(list(group), free, grants)
        if oversized is not None:
            return grants, oversized
        if free <= 0:
            break
    return grants, None


def _share_equally(peers: Sequence[C], free: int, grants: list[tuple[C, int]]) -> tuple[int, C | None]:
    one_by_one = len(peers) > 1 and all(queue.only_starts for queue in peers)
    for position, queue in enumerate(peers):
        if one_by_one and free <= 0:
            break  # the others are served first in the next step, some ms later
        if queue.size > free:
            # If queues of equal priority took the units in this round, this queue is served before them in
            # the next round.
            return free, queue
        part = free if one_by_one else free // (len(peers) - position)
        number = max(1, part // queue.size)
        if queue.startable is not None:
            number = min(number, queue.startable)
        grants.append((queue, number))
        free -= number * queue.size
    return free, None


class Shares(NamedTuple):
    """The shares of the queues in one step of the worker loop."""

    #: The number of jobs that may start now, by queue.
    grants: dict[QueueState, int]
    #: True if the process may send claims.
    claiming: bool
    #: True if claims may ask for more jobs than can start now; False while a queue waits for capacity.
    prefetching: bool


def choose_queues(queues: Sequence[QueueState], free: int) -> list[QueueState]:
    """Return the queues that share the capacity: all except queues of short runs whose turn comes later.

    `queues` have prefetched runs or may claim. A claim of few jobs from each of many queues costs more than
    its jobs. So of the queues that have short runs and equal priority, those without prefetched runs claim in
    turns: none while the prefetched runs of this priority take the whole capacity, else as many as fill it.
    While they take it, those with prefetched runs only start these.
    """
    chosen: list[QueueState] = []
    short: dict[int, list[QueueState]] = {}
    needed: dict[int, int] = {}
    for queue in queues:
        if queue.prefetch.runs:
            needed[queue.priority] = needed.get(queue.priority, free) - len(queue.prefetch.runs) * queue.size
        elif queue.prefetch.is_short:
            short.setdefault(queue.priority, []).append(queue)
            continue
        chosen.append(queue)
    for priority, waiting in short.items():
        left = needed.get(priority, free)
        for queue in sorted(waiting, key=lambda queue: queue.last_served):
            if left <= 0:
                break
            chosen.append(queue)
            left -= queue.prefetch.step * queue.size
    for queue in chosen:
        queue.only_starts = bool(
            queue.prefetch.runs and needed[queue.priority] <= 0 and queue.prefetch.is_short
        )
    return chosen


@define(eq=False)
class OversizedQueues:
    """The queues whose next job needs more capacity than is free. One request counts their jobs.

    `wake_worker` is called when a queue may be counted again, `back_off` with each queue of a failed count.
    """

    _storage: Storage
    _wake_worker: Callable[[], None]
    _back_off: Callable[[QueueState], None]
    _to_count: list[QueueState] = field(factory=list, init=False)

    def add(self, queue: QueueState, now: float) -> None:
        """Add a queue to the next count, or make it wait if its latest count was too recent."""
        queue.readiness.ready = False
        if pause := queue.readiness.seconds_until_recount(now):
            queue.readiness.snoozed = True
            asyncio.get_running_loop().call_later(pause, self._wake_queue, queue)
        else:
            queue.round_trips.counting = True
            self._to_count.append(queue)

    def take_queues_to_count(self) -> Sequence[QueueState]:
        """Remove and return the queues to count now."""
        taken, self._to_count = self._to_count, []
        return taken

    async def count(self, queues: Sequence[QueueState]) -> None:
        """Count the jobs of these queues, and record which queues have due jobs. Errors are only logged."""
        try:
            counts = await self._storage.counts([queue.name for queue in queues])
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning(
                "counting the jobs of queues with large runs failed, trying again: %s",
                summarize_exception(error),
            )
            for queue in queues:
                queue.readiness.wake()
                self._back_off(queue)
        else:
            for queue in queues:
                queue_counts = counts[queue.name]
                queue.readiness.update_after_count(
                    due=queue_counts.waiting > queue_counts.scheduled or queue_counts.approximate
                )
        finally:
            for queue in queues:
                queue.round_trips.counting = False
                queue.note_change()

    def _wake_queue(self, queue: QueueState) -> None:
        queue.readiness.wake()
        self._wake_worker()


@define(eq=False)
class Fairness:
    """The sharing of the free capacity of a process among its queues."""

    _capacity: Capacity
    _oversized: OversizedQueues
    #: The latest value given to QueueState.last_served.
    _served: int = field(default=0, init=False)

    def share(
        self, queues: Sequence[QueueState], now: float, *, claiming: bool, claims_with_settlements: bool
    ) -> Shares:
        """Return the shares of these queues. With `claiming=False`, only prefetched runs may start.

        With `claims_with_settlements`, free capacity goes to the queues with settlements.
        """
        free = self._capacity.free
        wanting = [queue for queue in queues if queue.prefetch.runs or (claiming and queue.can_claim(now))]
        if len(wanting) > 1:
            wanting = choose_queues(wanting, free)
        elif wanting:
            wanting[0].only_starts = False
        granted, oversized = share_capacity(wanting, free)
        while oversized is not None and not oversized.has_jobs and _units_left(granted, free):
            # Count its jobs before keeping capacity free for them, and serve the other queues until then.
            self._oversized.add(oversized, now)
            wanting = [queue for queue in wanting if queue is not oversized]
            granted, oversized = share_capacity(wanting, free)
        grants = dict(granted)
        if claiming and claims_with_settlements and not wanting:
            self._grant_to_settling_queues(queues, grants, free, now)
        return Shares(grants, claiming, claiming and oversized is None)

    def _grant_to_settling_queues(
        self, queues: Sequence[QueueState], grants: dict[QueueState, int], free: int, now: float
    ) -> None:
        """Grant the units to queues with settlements, whose requests can carry a claim."""
        for queue in queues:
            if queue.round_trips.outbox and queue.size <= free and queue.can_send(now):
                grants[queue] = free // queue.size
                free -= queue.size * grants[queue]

    def take_prefetched(
        self, queues: Sequence[QueueState], shares: Shares
    ) -> tuple[Sequence[tuple[QueueState, Invocation]], Mapping[QueueState, int]]:
        """Take the prefetched runs that may start. Return them, and the number of further jobs by queue."""
        starting: list[tuple[QueueState, Invocation]] = []
        free: dict[QueueState, int] = {}
        for queue in queues:
            if share := shares.grants.get(queue, 0):
                prefetched = queue.prefetch.take_first(share)
                self.take_capacity(queue, len(prefetched))
                starting += [(queue, invocation) for invocation in prefetched]
                free[queue] = share - len(prefetched)
        return starting, free

    def take_capacity(self, queue: QueueState, number: int) -> None:
        """Take the capacity for `number` runs of a queue, and make the queue the most recently served."""
        if number:
            self.note_served(queue)
            self._capacity.take(number * queue.size)

    def note_served(self, queue: QueueState) -> None:
        """Make a queue the most recently served one."""
        self._served += 1
        queue.last_served = self._served


def _units_left(granted: Sequence[tuple[QueueState, int]], free: int) -> bool:
    return free > sum(queue.size * number for queue, number in granted)
