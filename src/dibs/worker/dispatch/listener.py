"""The wait for wake-ups, by which a storage reports that a queue has a new job.

It covers all queues that had no job at their latest claim.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define, field

from dibs.client.calls.error_info import summarize_exception
from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import QueueState

logger = logging.getLogger("dibs.worker")

#: Shortest timeout of a wait, in seconds. A timer may fire a little before the time `poll_at` of a queue.
TIMER_TOLERANCE: Final = 0.001
#: Seconds before the wait for idle queues restarts. One restart then covers all queues that run out of jobs
#: at about the same time, as at the start of a worker.
RESTART_DELAY: Final = 0.01
#: Seconds by which the clock of the storage may be ahead of the clock here when it reports a job as due.
CLOCK_TOLERANCE: Final = 0.05


class Listener:
    """The waits for wake-ups. A queue becomes ready after a wake-up, and when its next poll is due.

    Queues that had jobs recently share one wait, idle queues another. A wait restarts with each job of one
    of its queues and checks all its queues, so in a common wait one busy queue would cause work for many idle
    queues. `wake_worker` is called when a queue has become ready.
    """

    def __init__(self, storage: Storage, poll: float, wake_worker: Callable[[], None]) -> None:
        self._idle = _SharedWait(storage, poll, wake_worker, RESTART_DELAY)
        self._active = _SharedWait(storage, poll, wake_worker, 0.0)

    def listen(self, queues: Sequence[QueueState]) -> None:
        """Wait for exactly these queues from now on. A running wait for the same queues continues."""
        idle, active = list[QueueState](), list[QueueState]()
        now = time.monotonic()
        for queue in queues:
            (idle if queue.readiness.active_until <= now else active).append(queue)
        self._idle.listen(idle)
        self._active.listen(active)

    def close(self) -> None:
        self._idle.close()
        self._active.close()


@define(eq=False)
class _SharedWait:
    """One wait for any number of queues. It restarts `_restart_delay` seconds after the queues changed."""

    _storage: Storage
    #: Longest time of one call of the storage's `wait`, in seconds.
    _poll: float
    _wake_worker: Callable[[], None]
    _restart_delay: float
    #: The queues that the next wait must cover.
    _wanted: list[QueueState] = field(factory=list, init=False)
    #: The queues of the running wait.
    _queues: list[QueueState] = field(factory=list, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    #: The timer that restarts the wait after the pause.
    _restart_timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def listen(self, queues: list[QueueState]) -> None:
        self._wanted = queues
        if queues == self._queues or self._restart_timer is not None:
            return
        if self._task is None or not self._restart_delay:
            self._start_wait()
        else:
            self._restart_timer = asyncio.get_running_loop().call_later(self._restart_delay, self._start_wait)

    def close(self) -> None:
        self._wanted = []
        self._start_wait()

    def _start_wait(self) -> None:
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None
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
        """Wait for one wake-up or timeout, and return whether a queue is ready."""
        began, tokens = time.monotonic(), {queue.name: queue.readiness.token for queue in queues}
        next_poll = min(queue.readiness.poll_at for queue in queues)
        timeout = max(TIMER_TOLERANCE, min(self._poll, next_poll - began))
        try:
            # A token marks the latest claim or wait of a queue; the wait ends after any later change. For a
            # queue without a token, the wait ends as soon as one of its jobs is due.
            since = {name: token for name, token in tokens.items() if token}
            wake = await self._storage.wait(tuple(tokens), since=since, timeout=timeout)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; polling continues
            logger.warning(
                "waiting for jobs failed, polling every %g s: %s", self._poll, summarize_exception(error)
            )
            await asyncio.sleep(self._poll)
            for queue in queues:
                queue.readiness.wake()
            return True
        now = time.monotonic()
        if wake.woken:
            return _wake_changed_queues(queues, wake, tokens, now) or _any_ready(queues)
        for queue in queues:
            queue.readiness.update_after_wait(wake.since.get(queue.name, ""), tokens[queue.name], now)
        # A storage may return before the timeout: wait here for the rest of it.
        await asyncio.sleep(max(0.0, timeout - (now - began)))
        return _any_ready(queues)


def _any_ready(queues: Sequence[QueueState]) -> bool:
    return any(queue.readiness.ready for queue in queues)


def _wake_changed_queues(
    queues: Sequence[QueueState], wake: WaitResult, tokens: Mapping[str, str], now: float
) -> bool:
    """Wake the queues with a newer token or a due job, and return whether a queue was woken.

    If no queue has a newer token or a due job, the cause of the wake-up is unknown: wake all queues. A queue
    without a token may have changed, too; in that case the next wait ends at once.
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
