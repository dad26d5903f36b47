"""Who is served next, and with how much: 100 units a process, shared out over its queues."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol, TypeVar

#: The units of one worker process.
UNITS: Final = 100


class Served(Protocol):
    """What the order of service knows of a queue."""

    #: Units that one of its runs takes, at most UNITS.
    size: int
    #: Higher is served first.
    priority: int
    #: When it was last served, as a number that grows; 0 is never.
    served: int

    @property
    def most(self) -> int | None:
        """How many of its jobs could begin now at most; None is not known."""


S = TypeVar("S", bound=Served)


class Capacity:
    """The units of a process: taken before a claim goes out, given back when a run is over."""

    def __init__(self, units: int = UNITS) -> None:
        self.units = units
        self.free = units

    def take(self, units: int) -> None:
        self.free -= units

    def give(self, units: int) -> None:
        self.free += units


def fitted(size: int, units: int = UNITS) -> int:
    """Return what a run takes here: one that is larger than the process has it for itself."""
    return max(1, min(size, units))


def share_out(queues: Sequence[S], free: int) -> tuple[list[tuple[S, int]], S | None]:
    """Return how many jobs each queue may claim now, and the queue that has to wait for more room.

    In order of priority, then of least recent service; equals of one priority share what is free. Behind
    a queue whose next job does not fit nobody is served, so it gets its room as soon as runs end.
    """
    grants: list[tuple[S, int]] = []
    if len(queues) == 1:
        # Mostly so, when a worker is idle and a job comes: nothing to put in order.
        return grants, _share_equally(queues, free, grants)[1]
    order = sorted(queues, key=lambda queue: (-queue.priority, queue.served))
    for _, group in groupby(order, key=lambda queue: queue.priority):
        free, stuck = _share_equally(list(group), free, grants)
        if stuck is not None:
            return grants, stuck
        if free <= 0:
            break
    return grants, None


def _share_equally(peers: Sequence[S], free: int, grants: list[tuple[S, int]]) -> tuple[int, S | None]:
    for place, queue in enumerate(peers):
        if queue.size > free:
            # Not stuck, only late: this round's units went to those before it, and next time it is first.
            return free, queue
        number = max(1, free // (len(peers) - place) // queue.size)
        if queue.most is not None:
            number = min(number, queue.most)
        grants.append((queue, number))
        free -= number * queue.size
    return free, None
