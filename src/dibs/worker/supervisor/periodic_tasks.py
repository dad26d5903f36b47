"""The periodic tasks of a worker. Their missing ticks are enqueued at the start and every minute.

A tick is the job that runs a periodic task once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dibs.client.calls.error_info import summarize_exception
from dibs.client.calls.handler import Handler
from dibs.maintenance.rotation import Rotation
from dibs.maintenance.ticks import CHECK_EVERY, enqueue_missing_tick
from dibs.model.results import Counts
from dibs.model.schedule import TICK_ID
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Largest number of schedules with a live job that are checked every CHECK_EVERY seconds.
LIVE_SCHEDULES: Final = 10


class PeriodicTasks:
    """The schedules of the queues that one worker serves, and the repair of these schedules."""

    def __init__(self, storage: Storage, handlers: Iterable[Handler]) -> None:
        self._storage = storage
        self._schedules = {
            handler.queue: handler.schedule for handler in handlers if handler.schedule is not None
        }
        self._live = Rotation(tuple(self._schedules), LIVE_SCHEDULES)

    async def keep_enqueueing_missing_ticks(self) -> None:
        """Enqueue missing ticks every CHECK_EVERY seconds, until cancelled."""
        while self._schedules:
            await asyncio.sleep(CHECK_EVERY)
            await self._enqueue_missing_ticks(await self._queues_to_check())

    async def enqueue_missing_ticks(self) -> None:
        """Enqueue each missing tick. Never raise: an error is logged, and the next call tries again."""
        await self._enqueue_missing_ticks(tuple(self._schedules))

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
            try:
                await enqueue_missing_tick(self._storage, queue, self._schedules[queue])
            except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next call may succeed
                logger.warning(
                    "%s: enqueueing the next tick failed, trying again in a minute: %s",
                    queue, summarize_exception(error),
                )  # fmt: skip

    async def queues_with_ticks_only(self, counts: Mapping[str, Counts]) -> set[str]:
        """Return the queues whose only live job is a tick that waits for its time."""
        candidates = [queue for queue in self._schedules if _has_one_scheduled_job(counts[queue])]
        return {queue for queue in candidates if await self._has_first_attempt_tick(queue)}

    async def _has_first_attempt_tick(self, queue: str) -> bool:
        [slot] = await self._storage.get(queue, [TICK_ID])
        # A tick that had an attempt waits for a retry, so the work in this queue is not finished.
        return slot.current is not None and slot.current.run is None and slot.current.attempts == 0


def _has_one_scheduled_job(counts: Counts) -> bool:
    return counts.waiting == counts.scheduled == 1 and not counts.blocked
