"""The replacement of runs of schedules with `overlap="replace"`, once their next tick is due."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from attrs import define

from dibs.errors import DibsError
from dibs.model.schedule import Schedule, next_replacement, replacement
from dibs.storage.protocol import Storage
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import find_schedule, may_be_tick

logger = logging.getLogger("dibs.worker")

#: The longest time in ms between two looks at a run: its schedule may be changed, or resumed, meanwhile.
_LOOK_EVERY: Final = 60_000
#: The time in ms until a look that failed is repeated.
_RETRY_AFTER: Final = 5_000


@define(eq=False)
class TickReplacement:
    """Asks a run to stop when the next tick of its schedule is due.

    The process with the run does it: no other knows all runs of schedules without reading each job. If it
    dies, the run comes back when its lease ends, as any run.
    """

    _storage: Storage
    _start_task: Callable[[Coroutine[Any, Any, None]], None]
    #: Interrupts a run of this process.
    _cancel_run: Callable[[Invocation], None]

    def watch(self, invocation: Invocation) -> None:
        """Start the timer that asks a run of a schedule with overlap="replace" to stop at the next tick."""
        if not may_be_tick(invocation):
            return
        schedule = find_schedule(invocation.handler, invocation.job.id, invocation.job.data)
        if schedule is not None and schedule.overlap == "replace":
            self._look_at(invocation, schedule, schedule.next_tick(invocation.claimed_at))

    def _look_at(self, invocation: Invocation, schedule: Schedule, instant: int) -> None:
        delay = min(max(0, instant - _storage_time(invocation)), _LOOK_EVERY)
        asyncio.get_running_loop().call_later(delay / 1000, self._look, invocation, schedule)

    def _look(self, invocation: Invocation, schedule: Schedule) -> None:
        if not invocation.finished:
            self._start_task(self._replace_if_due(invocation, schedule))

    async def _replace_if_due(self, invocation: Invocation, schedule: Schedule) -> None:
        queue, id, fence = invocation.key
        try:
            [slot] = await self._storage.get(queue, [id])
            tick = next_replacement(schedule, slot, fence=fence, claimed_at=invocation.claimed_at)
            if tick is None or invocation.finished:
                return
            if tick > _storage_time(invocation):
                self._look_at(invocation, schedule, tick)
                return
            await self._storage.enqueue(queue, [replacement(schedule, id, tick)])
        except DibsError as error:
            logger.warning(
                "%s/%s: the run goes on for now, although its next tick is due: %s", queue, id, error,
                extra=invocation.log_fields,
            )  # fmt: skip
            self._look_at(invocation, schedule, _storage_time(invocation) + _RETRY_AFTER)
            return
        # The next heartbeat would tell it, too, seconds later.
        if not invocation.finished:
            logger.info(
                "%s/%s: the next tick is due and replaces this run", queue, id, extra=invocation.log_fields
            )
            self._cancel_run(invocation)


def _storage_time(invocation: Invocation) -> int:
    """Return an estimate of the time of the storage: that of the claim, and the time since it arrived."""
    return invocation.claimed_at + round((time.monotonic() - invocation.received_at) * 1000)
