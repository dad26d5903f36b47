"""The claim that an idle process leaves with the storage: a job that comes is brought by its answer.

Without one, a job that comes is told to the worker, and the worker asks for it. One is enough: it lies at the
queue that is likeliest to have the next job, and what comes to the others is told as ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, cast
from uuid import uuid4

from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.dispatch.queue_state import Lane
from dibs.worker.dispatch.round_trip import Flight, Parked

logger = logging.getLogger("dibs.worker")

#: Seconds until a parked claim is made although nothing was heard. As long it takes to find a job whose token
#: was lost; with what a reply may take, a claim that lies on a connection that is dead.
PARKED: Final = 5.0
#: What it may bring: one job, and whether there is more. No more than that, for it takes jobs also while this
#: process is held up, where others could run them.
FEW: Final = 2
#: Seconds that a timer may ring early, and a job is not due yet.
TICK: Final = 0.001


class Parking:
    """At most one claim of a worker process, parked while the process has nothing in hand."""

    def __init__(self, storage: Storage, woken: Callable[[], None]) -> None:
        self._storage, self._woken = storage, woken
        self._name, self._count = uuid4().hex, 0
        self._lane: Lane | None = None
        self._flight: Flight | None = None
        self._called_back = False
        #: Rings when the next job of its queue falls due.
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def is_out(self) -> bool:
        """Whether a claim is parked."""
        return self._flight is not None and self._flight.brought is None

    def best(self, lanes: Collection[Lane], now: float) -> Lane | None:
        """Return the queue to park at: of those that are quiet, the one whose latest job is the youngest."""
        if not self._storage.capabilities.blocking_claim or any(lane.ready for lane in lanes):
            return None
        quiet = [lane for lane in lanes if lane.quiet and lane.at_rest(now)]
        return max(quiet, key=lambda lane: lane.lively_until, default=None)

    def place(self) -> Parked:
        """Return a place of its own for one claim."""
        self._count += 1
        return Parked(f"{self._name}-{self._count}", PARKED)

    def took_off(self, lane: Lane, flight: Flight, now: float) -> None:
        """Learn which claim is parked, and let it be called back when a job falls due.

        The time that it waits at the server is no use for that: Redis looks ten times a second whose is over.
        """
        self._lane, self._flight, self._called_back = lane, flight, False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if lane.due_at is not None and lane.due_at < now + PARKED:
            seconds = max(0.0, lane.due_at - now) + TICK
            self._alarm = asyncio.get_running_loop().call_later(seconds, self._woken)

    def is_in_the_way(self, lanes: Collection[Lane], lease: str | None, now: float) -> bool:
        """Tell whether to call it back: a job is due, its lease is over, or it holds another queue's room."""
        lane = self._lane
        if self._called_back or self._flight is None or lane is None:
            return False
        if self._flight.lease != lease or lane.is_due(now):
            return True
        return any(other.ready for other in lanes if other is not lane)

    async def call_back(self) -> None:
        """Let it be made now. Never raises: it comes back by itself, only later."""
        flight, lane, self._called_back = self._flight, self._lane, True
        if flight is None or flight.parked is None or lane is None:
            return
        try:
            await cast("BlockingClaims", self._storage).wake_claim(lane.queue, flight.parked.place)
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too
            logger.warning("%s: a parked claim could not be called back: %s", lane.queue, error)
