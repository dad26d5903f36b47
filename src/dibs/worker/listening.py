"""Wake-ups for the queues that had nothing, all in one call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from dibs.model.answers import Wake
from dibs.storage.protocol import Storage
from dibs.worker.lanes import Lane

logger = logging.getLogger("dibs.worker")

#: Least seconds of a wait for lanes of which one is to be asked at once: a timer may ring a tick early.
TICK: Final = 0.001
#: Seconds by which a storage may tell that a job falls due before we expect it: its clock is another.
EARLY: Final = 0.05


class Listener:
    """Lets quiet lanes be ready again: those a wake-up concerns, and those whose time to be asked has come.

    Lively queues are waited for apart. A wait is begun anew with each job of one of its queues, and looks at
    all of them, so without that one busy queue would make work of many idle ones.
    """

    def __init__(self, storage: Storage, poll: float, woken: Callable[[], None]) -> None:
        self._quiet = _Waiting(storage, poll, woken)
        self._lively = _Waiting(storage, poll, woken)

    def listen(self, lanes: Sequence[Lane]) -> None:
        """Wait for these and no others; a wait for the same ones goes on."""
        now = time.monotonic()
        self._quiet.listen([lane for lane in lanes if lane.lively_until <= now])
        self._lively.listen([lane for lane in lanes if lane.lively_until > now])

    def close(self) -> None:
        """Wait no more."""
        self.listen([])


class _Waiting:
    """One wait for any number of lanes."""

    def __init__(self, storage: Storage, poll: float, woken: Callable[[], None]) -> None:
        self._storage = storage
        self._poll = poll
        self._woken = woken
        self._lanes: list[Lane] = []
        self._task: asyncio.Task[None] | None = None

    def listen(self, lanes: list[Lane]) -> None:
        if lanes == self._lanes:
            return
        if self._task is not None:
            self._task.cancel()
        self._lanes, self._task = lanes, None
        if lanes:
            self._task = asyncio.get_running_loop().create_task(self._wait(lanes))

    async def _wait(self, lanes: list[Lane]) -> None:
        while not any(lane.ready for lane in lanes):
            await self._wait_once(lanes)
        self._lanes, self._task = [], None
        self._woken()

    async def _wait_once(self, lanes: list[Lane]) -> None:
        began, asked = time.monotonic(), {lane.queue: lane.token for lane in lanes}
        timeout = max(TICK, min(self._poll, min(lane.asked_at for lane in lanes) - began))
        try:
            wake = await self._storage.wait(tuple(asked), since=asked, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the slow poll stands in
            logger.warning("no wake-ups, looking every %g s: %s", self._poll, error)
            await asyncio.sleep(self._poll)
            for lane in lanes:
                lane.wake()
            return
        now = time.monotonic()
        if wake.woken:
            _wake(lanes, wake, asked, now)
            return
        for lane in lanes:
            lane.slept(wake.since.get(lane.queue, ""), asked[lane.queue], now)
        # For a storage that does not wait.
        await asyncio.sleep(max(0.0, timeout - (now - began)))


def _wake(lanes: Sequence[Lane], wake: Wake, asked: dict[str, str], now: float) -> None:
    """Wake lanes that moved past what we know of them, or have a job due; all, if that explains nothing."""
    explained = False
    for lane in lanes:
        token = wake.since.get(lane.queue)
        due = lane.is_due(now + EARLY)
        explained = explained or due or token != asked[lane.queue]
        if due or token != lane.token:
            lane.wake()
    if not explained:
        for lane in lanes:
            lane.wake()
