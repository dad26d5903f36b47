"""Lets periodic tasks go on: each tick's settlement holds the next, and where there is none it is planted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping

from dibs.client.calls.handler import Handler
from dibs.maintenance.schedule import EVERY, plant
from dibs.model import schedule as model
from dibs.model.answers import Counts
from dibs.model.requests import Complete, How
from dibs.model.schedule import TICK
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import second_try
from dibs.worker.execution.invocation import Invocation
from dibs.worker.supervisor.held_runs import Holding

logger = logging.getLogger("dibs.worker")


def carried_on(run: Invocation, how: How) -> How:
    """Return the settlement of a run; a tick's with what keeps its schedule going."""
    if run.handler.schedule is None:
        return how
    return _carried_on(run.handler, run.job.id, run.claimed_at, run.taken, how)


def left_carried_on(handler: Handler, holding: Holding, how: How) -> How:
    """Return the same for a run whose process is gone."""
    return _carried_on(handler, holding.run.id, holding.run.claimed_at, holding.taken, how)


def _carried_on(handler: Handler, id: str, claimed_at: int, taken: float, how: How) -> How:
    if handler.schedule is None or id != TICK:
        return how
    # The storage's clock, as far as it can be known here: when it was claimed, and how long that is ago.
    now = claimed_at + round((time.monotonic() - taken) * 1000)
    return model.carried_on(handler.schedule, handler.queue, how, claimed_at=claimed_at, now=now)


def tried_again(run: Invocation, reason: str) -> How | None:
    """Return how a run is settled whose settlement was refused, see second_try."""
    again = second_try(run.end, reason, handled=run.handler.handles_failure)
    # An end that was refused with the next tick in it is tried without: it will be planted.
    return carried_on(run, again) if again is not None and isinstance(run.end, Complete) else again


class Schedules:
    """The periodic ones among the handlers of a worker."""

    def __init__(self, storage: Storage, handlers: Iterable[Handler]) -> None:
        self._storage = storage
        self._of = {handler.queue: handler.schedule for handler in handlers if handler.schedule is not None}

    async def keep(self) -> None:
        """Plant missing ticks every minute."""
        while self._of:
            await asyncio.sleep(EVERY)
            await self.plant()

    async def plant(self) -> None:
        """Plant missing ticks. Never raises: what fails is for the next time."""
        for queue, schedule in self._of.items():
            try:
                await plant(self._storage, queue, schedule)
            except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the next time may go well
                logger.warning("%s: the schedule could not be looked after: %s", queue, error)

    async def resting(self, counts: Mapping[str, Counts]) -> set[str]:
        """Return the queues in which nothing waits but a tick for its time."""
        quiet = [queue for queue in self._of if _only_scheduled(counts[queue])]
        return {queue for queue in quiet if await self._rests(queue)}

    async def _rests(self, queue: str) -> bool:
        [slot] = await self._storage.get(queue, [TICK])
        # One that came back is something left to do.
        return slot.current is not None and slot.current.run is None and slot.current.attempts == 0


def _only_scheduled(counts: Counts) -> bool:
    return counts.waiting == counts.scheduled == 1 and not counts.blocked
