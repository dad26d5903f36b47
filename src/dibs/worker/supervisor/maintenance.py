"""What a supervisor does for its queues beside watching its processes, as any other may do, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from dibs.client.work_report import WorkReport
from dibs.maintenance.prune import prune
from dibs.maintenance.reap import ReapCandidates, reap
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Most seconds between two reaps of a queue: what dead holders left comes back so soon after its lease.
REAP_EVERY: Final = 0.8
#: Seconds between two prunes of a queue.
PRUNE_EVERY: Final = 60.0


class Maintenance:
    """Reaps and prunes, until cancelled. What fails is for the next time."""

    def __init__(self, storage: Storage, queues: Sequence[str], report: WorkReport, heartbeat: float) -> None:
        self._storage = storage
        self._queues = queues
        self._report = report
        self._pause = min(heartbeat, REAP_EVERY)
        self._suspicion = ReapCandidates(storage, queues)

    def all(self) -> list[Coroutine[Any, Any, None]]:
        """Return the duties, to be run side by side."""
        return [self._reap_always(), self._prune_always()]

    async def _reap_always(self) -> None:
        while True:
            await self._reap()
            await asyncio.sleep(self._pause)

    async def _reap(self) -> None:
        try:
            suspects = await self._suspicion.queues()
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the next time may go well
            logger.warning("no queue was reaped: %s", error)
            return
        for queue in suspects:
            try:
                found = await reap(self._storage, queue)
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("%s: not reaped: %s", queue, error)
            else:
                self._report.queue(queue).reaped += len(found)

    async def _prune_always(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY)
            for queue in self._queues:
                try:
                    await prune(self._storage, queue)
                except Exception as error:  # noqa: BLE001 - as above
                    logger.warning("%s: not pruned: %s", queue, error)
