"""Wake-ups for the queues that had nothing, all in one call, with the slow poll behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from dibs.storage.protocol import Storage
from dibs.worker.lanes import Lane

logger = logging.getLogger("dibs.worker")


class Listener:
    """Lets quiet lanes be ready again: those a wake-up concerns, or all when nothing came for `poll` s."""

    def __init__(self, storage: Storage, poll: float, woken: Callable[[], None]) -> None:
        self._storage = storage
        self._poll = poll
        self._woken = woken
        self._lanes: list[Lane] = []
        self._task: asyncio.Task[None] | None = None

    def listen(self, lanes: list[Lane]) -> None:
        """Wait for these and no others; a wait for the same ones goes on."""
        if lanes == self._lanes:
            return
        self.close()
        self._lanes = lanes
        if lanes:
            self._task = asyncio.get_running_loop().create_task(self._wait(lanes))

    def close(self) -> None:
        """Wait no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._lanes = []

    async def _wait(self, lanes: list[Lane]) -> None:
        asked = {lane.queue: lane.token for lane in lanes}
        tokens = await self._ask(asked)
        now = time.monotonic()
        for lane in lanes:
            if tokens is None:
                lane.ready = True
            else:
                lane.wake(tokens.get(lane.queue), asked[lane.queue], now)
        self._lanes = []
        self._task = None
        self._woken()

    async def _ask(self, asked: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return where the queues stand, None if nothing came in time."""
        try:
            wake = await self._storage.wait(tuple(asked), since=asked, timeout=self._poll)
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the slow poll stands in
            logger.warning("no wake-ups, looking every %g s: %s", self._poll, error)
            await asyncio.sleep(self._poll)
            return None
        return wake.since if wake.woken else None
