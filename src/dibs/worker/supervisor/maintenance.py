"""The supervisor's regular maintenance of its queues: reaping and pruning. Several may run at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from attrs import define, field

from dibs.client.calls.error_info import summarize_exception
from dibs.client.work_report import WorkReport
from dibs.maintenance.prune import prune
from dibs.maintenance.reap import ReapCandidates, reap
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Longest pause between two reaps, in seconds. Jobs of dead workers wait this long after their lease expired.
REAP_EVERY: Final = 0.8
#: Seconds between two prunes of a queue.
PRUNE_EVERY: Final = 60.0


@define(eq=False)
class Maintenance:
    """Loops that reap and prune the queues. An error is logged, and the next turn tries again."""

    _storage: Storage
    _queues: Sequence[str]
    _report: WorkReport
    #: Seconds between two renewals of the lease. If this is less than REAP_EVERY, reaps are as frequent.
    _heartbeat: float
    _candidates: ReapCandidates = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._candidates = ReapCandidates(self._storage, self._queues)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return two endless coroutines. The caller runs them as tasks, and cancels the tasks at the end."""
        return [self._keep_reaping(), self._keep_pruning()]

    async def _keep_reaping(self) -> None:
        while True:
            await self._reap_candidates()
            await asyncio.sleep(min(self._heartbeat, REAP_EVERY))

    async def _reap_candidates(self) -> None:
        try:
            candidates = await self._candidates.select_queues()
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the next turn may succeed
            logger.warning(
                "counting the queues failed, so they were not reaped: %s", summarize_exception(error)
            )
            return
        for queue in candidates:
            try:
                reaped = await reap(self._storage, queue)
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("%s: reaping failed: %s", queue, summarize_exception(error))
            else:
                self._report.queue(queue).reaped += len(reaped)

    async def _keep_pruning(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY)
            for queue in self._queues:
                try:
                    await prune(self._storage, queue)
                except Exception as error:  # noqa: BLE001 - as above
                    logger.warning("%s: pruning failed: %s", queue, summarize_exception(error))
