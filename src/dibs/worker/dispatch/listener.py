"""Wake-ups for the queues that had nothing, all in one call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import Lane

logger = logging.getLogger("dibs.worker")

#: Least seconds of a wait for lanes of which one is to be asked at once: a timer may ring a tick early.
TICK: Final = 0.001
#: Seconds in which queues fall quiet together, as at the start.
SETTLING: Final = 0.01
#: Seconds by which a storage may tell that a job falls due before we expect it: its clock is another.
EARLY: Final = 0.05


class Listener:
    """Lets quiet lanes be ready again: those a wake-up concerns, and those whose time to be asked has come.

    Lively queues are waited for apart. A wait is begun anew with each job of one of its queues, and looks at
    all of them, so without that one busy queue would make work of many idle ones.
    """

    def __init__(self, storage: Storage, poll: float, woken: Callable[[], None]) -> None:
        self._quiet = _Waiting(storage, poll, woken, SETTLING)
        self._lively = _Waiting(storage, poll, woken, 0.0)

    def listen(self, lanes: Sequence[Lane]) -> None:
        """Wait for these and no others; a wait for the same ones goes on."""
        quiet, lively = list[Lane](), list[Lane]()
        now = time.monotonic()
        for lane in lanes:
            (quiet if lane.lively_until <= now else lively).append(lane)
        self._quiet.listen(quiet)
        self._lively.listen(lively)

    def close(self) -> None:
        """Wait no more."""
        self._quiet.close()
        self._lively.close()


class _Waiting:
    """One wait for any number of lanes, begun anew when there are others, and `pause` seconds after that."""

    def __init__(self, storage: Storage, poll: float, woken: Callable[[], None], pause: float) -> None:
        self._storage = storage
        self._poll = poll
        self._woken = woken
        self._pause = pause
        self._wanted: list[Lane] = []
        self._lanes: list[Lane] = []
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None

    def listen(self, lanes: list[Lane]) -> None:
        self._wanted = lanes
        if lanes == self._lanes or self._later is not None:
            return
        if self._task is None or not self._pause:
            self._begin()
        else:
            self._later = asyncio.get_running_loop().call_later(self._pause, self._begin)

    def close(self) -> None:
        self._wanted = []
        self._begin()

    def _begin(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._wanted == self._lanes:
            return
        if self._task is not None:
            self._task.cancel()
        self._lanes, self._task = self._wanted, None
        if self._lanes:
            self._task = asyncio.get_running_loop().create_task(self._wait(self._lanes))

    async def _wait(self, lanes: list[Lane]) -> None:
        ready = any(lane.ready for lane in lanes)
        while not ready:
            ready = await self._wait_once(lanes)
        self._lanes, self._task = [], None
        self._woken()

    async def _wait_once(self, lanes: list[Lane]) -> bool:
        """Wait, and tell whether one of them is ready."""
        began, asked = time.monotonic(), {lane.queue: lane.token for lane in lanes}
        timeout = max(TICK, min(self._poll, min(lane.asked_at for lane in lanes) - began))
        try:
            # Without a token it is enough that something is due.
            since = {queue: token for queue, token in asked.items() if token}
            wake = await self._storage.wait(tuple(asked), since=since, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - a fault in a storage, too: the slow poll stands in
            logger.warning("no wake-ups, looking every %g s: %s", self._poll, error)
            await asyncio.sleep(self._poll)
            for lane in lanes:
                lane.wake()
            return True
        now = time.monotonic()
        if wake.woken:
            return _wake(lanes, wake, asked, now) or any(lane.ready for lane in lanes)
        for lane in lanes:
            lane.slept(wake.since.get(lane.queue, ""), asked[lane.queue], now)
        # For a storage that does not wait.
        await asyncio.sleep(max(0.0, timeout - (now - began)))
        return any(lane.ready for lane in lanes)


def _wake(lanes: Sequence[Lane], wake: WaitResult, asked: Mapping[str, str], now: float) -> bool:
    """Wake lanes that moved past what we know of them, or have a job due; all, if that explains nothing.

    One without a token may have moved, too: then the next wait, which looks at it, ends at once. Tells
    whether any was woken.
    """
    explained = woken = False
    for lane in lanes:
        before, token = asked[lane.queue], wake.since.get(lane.queue)
        due, moved = lane.is_due(now + EARLY), bool(before) and token != before
        explained = explained or due or moved
        if due or (moved and token != lane.token):
            lane.wake()
            woken = True
    if not explained:
        for lane in lanes:
            lane.wake()
    return woken or not explained
