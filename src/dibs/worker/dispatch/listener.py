"""WaitResult-ups for the queues without jobs, in one wait for all of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import QueueState

logger = logging.getLogger("dibs.worker")

#: Least seconds of a wait. A timer may fire early, and a queue may be due for its next claim at once.
TIMER_TOLERANCE: Final = 0.001
#: Seconds in which several queues run out of jobs together, as at the start of a worker.
SETTLING: Final = 0.01
#: Seconds by which a storage may report a job as due before we expect it: it has another clock.
CLOCK_TOLERANCE: Final = 0.05


class Listener:
    """Waits for wake-ups, and makes those queues ready that a wake-up concerns or whose next poll has come.

    Active queues have a wait of their own. A wait starts again with each job of one of its queues, and it
    covers all its queues, so one busy queue would otherwise cause work for many idle ones.
    """

    def __init__(self, storage: Storage, poll: float, wake_worker: Callable[[], None]) -> None:
        self._idle = _Wait(storage, poll, wake_worker, SETTLING)
        self._active = _Wait(storage, poll, wake_worker, 0.0)

    def listen(self, queues: Sequence[QueueState]) -> None:
        """Wait for these queues only. A wait for the same queues continues."""
        idle, active = list[QueueState](), list[QueueState]()
        now = time.monotonic()
        for queue in queues:
            (idle if queue.readiness.active_until <= now else active).append(queue)
        self._idle.listen(idle)
        self._active.listen(active)

    def close(self) -> None:
        """Stop waiting."""
        self._idle.close()
        self._active.close()


class _Wait:
    """One wait for any number of queues. It starts again, `pause` seconds later, when the queues change."""

    def __init__(self, storage: Storage, poll: float, wake_worker: Callable[[], None], pause: float) -> None:
        self._storage = storage
        self._poll = poll
        self._wake_worker = wake_worker
        self._pause = pause
        self._wanted: list[QueueState] = []
        self._queues: list[QueueState] = []
        self._task: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None

    def listen(self, queues: list[QueueState]) -> None:
        self._wanted = queues
        if queues == self._queues or self._restart is not None:
            return
        if self._task is None or not self._pause:
            self._start()
        else:
            self._restart = asyncio.get_running_loop().call_later(self._pause, self._start)

    def close(self) -> None:
        self._wanted = []
        self._start()

    def _start(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            self._restart = None
        if self._wanted == self._queues:
            return
        if self._task is not None:
            self._task.cancel()
        self._queues, self._task = self._wanted, None
        if self._queues:
            self._task = asyncio.get_running_loop().create_task(self._wait(self._queues))

    async def _wait(self, queues: list[QueueState]) -> None:
        ready = _any_ready(queues)
        while not ready:
            ready = await self._wait_once(queues)
        self._queues, self._task = [], None
        self._wake_worker()

    async def _wait_once(self, queues: list[QueueState]) -> bool:
        """Wait once, and return whether a queue is ready."""
        began, tokens = time.monotonic(), {queue.name: queue.readiness.token for queue in queues}
        next_poll = min(queue.readiness.poll_at for queue in queues)
        timeout = max(TIMER_TOLERANCE, min(self._poll, next_poll - began))
        try:
            # A queue without a token ends the wait as soon as one of its jobs is due.
            since = {name: token for name, token in tokens.items() if token}
            wake = await self._storage.wait(tuple(tokens), since=since, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; the poll takes over
            logger.warning("waiting for jobs failed, polling every %g s: %s", self._poll, error)
            await asyncio.sleep(self._poll)
            for queue in queues:
                queue.readiness.wake()
            return True
        now = time.monotonic()
        if wake.woken:
            return _wake_changed(queues, wake, tokens, now) or _any_ready(queues)
        for queue in queues:
            queue.readiness.waited(wake.since.get(queue.name, ""), tokens[queue.name], now)
        # A storage without wake-ups returns at once: wait here.
        await asyncio.sleep(max(0.0, timeout - (now - began)))
        return _any_ready(queues)


def _any_ready(queues: Sequence[QueueState]) -> bool:
    return any(queue.readiness.ready for queue in queues)


def _wake_changed(
    queues: Sequence[QueueState], wake: WaitResult, tokens: Mapping[str, str], now: float
) -> bool:
    """WaitResult the queues with a newer token or a due job, or all if that does not explain the wake-up.

    A queue without a token may have changed, too: then the next wait, which covers it, ends at once. Return
    whether a queue was woken.
    """
    explained = woken = False
    for queue in queues:
        before, token = tokens[queue.name], wake.since.get(queue.name)
        due = queue.readiness.is_due(now + CLOCK_TOLERANCE)
        changed = bool(before) and token != before
        explained = explained or due or changed
        if due or (changed and token != queue.readiness.token):
            queue.readiness.wake()
            woken = True
    if not explained:
        for queue in queues:
            queue.readiness.wake()
    return woken or not explained
