"""The periodic tasks of a worker: their schedules are stored at its start, and missing ticks every minute.

A tick is the job that runs a schedule once. Schedules made at run time cost a worker nothing at its start:
their ticks carry them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from dibs.client.calls.handler import Handler
from dibs.client.stored_schedules import storage_now
from dibs.maintenance.rotation import Rotation
from dibs.maintenance.ticks import (
    CHECK_EVERY,
    apply_declared_schedule,
    enqueue_missing_tick,
    holds_only_ticks,
)
from dibs.model.error_text import summarize_exception
from dibs.model.results import Counts
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Largest number of schedules with a live job that are checked every CHECK_EVERY seconds.
LIVE_SCHEDULES: Final = 10


class PeriodicTasks:
    """The schedules of the queues that one worker serves, and the repair of these schedules."""

    def __init__(self, storage: Storage, handlers: Iterable[Handler]) -> None:
        self._storage = storage
        self._declared = {handler.queue: handler.schedule for handler in handlers}
        self._schedules = {
            queue: schedule for queue, schedule in self._declared.items() if schedule is not None
        }
        self._live = Rotation(tuple(self._schedules), LIVE_SCHEDULES)

    async def apply_declared_schedules(self) -> None:
        """Store each declared schedule, and remove those of an older release. Log errors, and never raise.

        After an error, `keep_enqueueing_missing_ticks` stores a missing tick later. A changed or removed
        schedule stays as it is until the next start of a worker.
        """
        if not self._declared:
            return
        try:
            now = await storage_now(self._storage, next(iter(self._declared)))
            queues = await self._queues_with_schedules()
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.warning(
                "storing the schedules of periodic tasks failed, trying again in a minute: %s",
                summarize_exception(error),
            )
            return
        for queue in queues:
            with self._logged_errors(queue):
                await apply_declared_schedule(self._storage, queue, self._declared[queue], now)

    async def _queues_with_schedules(self) -> Sequence[str]:
        """Return the queues with a declared schedule, and those that may have one of an older release."""
        others = tuple(queue for queue, schedule in self._declared.items() if schedule is None)
        counts = await self._storage.counts(others) if others else {}
        live = [queue for queue, numbers in counts.items() if numbers.waiting or numbers.active]
        return (*self._schedules, *live)

    async def keep_enqueueing_missing_ticks(self) -> None:
        """Enqueue missing ticks every CHECK_EVERY seconds, until cancelled."""
        while self._schedules:
            await asyncio.sleep(CHECK_EVERY)
            await self._enqueue_missing_ticks(await self._queues_to_check())

    async def _queues_to_check(self) -> Sequence[str]:
        """Return the queues without a live job, whose tick is missing, and the next few of the others."""
        if len(self._schedules) <= LIVE_SCHEDULES:
            return tuple(self._schedules)
        try:
            counts = await self._storage.counts(tuple(self._schedules))
        except Exception as error:  # noqa: BLE001 - as below
            logger.warning(
                "counting the jobs of periodic tasks failed, trying again in a minute: %s",
                summarize_exception(error),
            )
            return ()
        missing = [queue for queue, numbers in counts.items() if not (numbers.waiting or numbers.active)]
        return tuple(dict.fromkeys((*missing, *self._live.next_turn())))

    async def _enqueue_missing_ticks(self, queues: Sequence[str]) -> None:
        for queue in queues:
            with self._logged_errors(queue):
                await enqueue_missing_tick(self._storage, queue, self._schedules[queue])

    @contextmanager
    def _logged_errors(self, queue: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next call may succeed
            logger.warning(
                "%s: enqueueing the next tick failed, trying again in a minute: %s",
                queue, summarize_exception(error),
            )  # fmt: skip

    async def queues_with_ticks_only(self, counts: Mapping[str, Counts]) -> set[str]:
        """Return the queues whose only live jobs are ticks that wait for their time."""
        candidates = [queue for queue, numbers in counts.items() if _has_only_scheduled_jobs(numbers)]
        return {queue for queue in candidates if await holds_only_ticks(self._storage, queue)}


def _has_only_scheduled_jobs(counts: Counts) -> bool:
    return counts.waiting == counts.scheduled > 0 and not counts.blocked
