"""The wait for wake-ups, by which a storage reports that a queue has a new job.

It covers all queues that had no job at their latest claim.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from attrs import define, field

from dibs.model.error_text import summarize_exception
from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage
from dibs.worker.dispatch.queue_state import QueueState

logger = logging.getLogger("dibs.worker")

#: Shortest timeout of a wait, in seconds. A timer may fire a little before the time `poll_at` of a queue.
TIMER_TOLERANCE: Final = 0.001
#: Shortest time in seconds before the wait for idle queues restarts. One restart then covers all queues that
#: run out of jobs at about the same time, as at the start of a worker.
RESTART_DELAY: Final = 0.01
#: Seconds of that time for each queue of the wait. A restart takes about 5 us of CPU time for each queue, so
#: restarts take at most a tenth of the time in which thousands of queues run out of jobs.
RESTART_DELAY_PER_QUEUE: Final = 50e-6
#: Largest number of queues whose wait restarts at once, and of active queues that wait apart from the others.
SMALL_WAIT: Final = 8
#: Seconds by which the clock of the storage may be ahead of the clock here when it reports a job as due.
CLOCK_TOLERANCE: Final = 0.05


class Listener:
    """The waits for wake-ups. A queue becomes ready after a wake-up, and when its next poll is due.

    Queues that had jobs recently share one wait, idle queues another. A wait restarts with each job of one
    of its queues and checks all its queues, so in a common wait one busy queue would cause work for many idle
    queues. For the same reason the queues that ran out of jobs last have a small wait of their own: while a
    worker empties many queues, the wait of the others restarts once for SMALL_WAIT of them. `wake_worker` is
    called when a queue has become ready.
    """

    def __init__(self, storage: Storage, poll: float, wake_worker: Callable[[], None]) -> None:
        self._idle = _SharedWait(storage, poll, wake_worker, self._sort_active)
        self._active = _SharedWait(storage, poll, wake_worker, self._sort_active)
        self._latest = _SharedWait(storage, poll, wake_worker, self._sort_active, SMALL_WAIT)

    @property
    def queues(self) -> Sequence[QueueState]:
        """The queues that need a wake-up."""
        return [*self._latest.wanted, *self._active.wanted, *self._idle.wanted]

    def update(self, queues: Iterable[QueueState]) -> None:
        """Add those of the queues that need a wake-up, and remove the others.

        `listen` starts and restarts the waits after it.
        """
        now = time.monotonic()
        for queue in queues:
            waits = queue.needs_wakeup
            active = waits and queue.readiness.active_until > now
            latest = active and queue not in self._active.wanted
            self._latest.update(queue, wanted=latest)
            self._active.update(queue, wanted=active and not latest)
            self._idle.update(queue, wanted=waits and not active)
        if len(self._latest.wanted) > SMALL_WAIT:
            for queue in list(self._latest.wanted):
                self._latest.update(queue, wanted=False)
                self._active.update(queue, wanted=True)

    def listen(self, *, later: bool = False) -> None:
        """Wait for the queues of `update` from now on. A running wait for the same queues continues.

        With `later`, a new wait begins after RESTART_DELAY, unless `suspend` is called before.
        """
        for wait in self._waits:
            wait.listen(later=later)

    def suspend(self) -> None:
        """End the waits until the next call of `listen`."""
        for wait in self._waits:
            wait.suspend()

    def close(self) -> None:
        for wait in self._waits:
            wait.close()

    @property
    def _waits(self) -> Sequence[_SharedWait]:
        return self._idle, self._active, self._latest

    def _sort_active(self) -> None:
        """Move the queues without recent jobs to the wait of the idle queues. Called after a quiet wait."""
        if active := [*self._latest.wanted, *self._active.wanted]:
            self.update(active)
            self.listen()


@define(eq=False)
class _SharedWait:
    """One wait for any number of queues."""

    _storage: Storage
    #: Longest time of one call of the storage's `wait`, in seconds.
    _poll: float
    _wake_worker: Callable[[], None]
    #: Called after a wait in which no queue has become ready.
    _on_quiet: Callable[[], None]
    #: The largest number of queues for which a running wait restarts at once when they change. A larger wait
    #: restarts after RESTART_DELAY.
    _small: int = 0
    #: The queues that the next wait must cover.
    wanted: dict[QueueState, None] = field(factory=dict, init=False)
    #: The queues of the running wait.
    _queues: list[QueueState] = field(factory=list, init=False)
    #: True if a queue was added to `wanted`, or the last one removed, since the start of the running wait.
    _changed: bool = field(default=False, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    #: The timer that restarts the wait after the pause.
    _restart_timer: asyncio.TimerHandle | None = field(default=None, init=False)

    def update(self, queue: QueueState, *, wanted: bool) -> None:
        """Add a queue to the next wait, or remove it."""
        if wanted == (queue in self.wanted):
            return
        if wanted:
            self.wanted[queue] = None
        else:
            del self.wanted[queue]
        # A running wait may cover a queue that was removed: a change of it then ends the wait once. A restart
        # for each removal would check all the other queues each time.
        self._changed = self._changed or wanted or not self.wanted

    def listen(self, *, later: bool) -> None:
        if not self._changed or (self._restart_timer is not None and (later or self._task is not None)):
            return
        if not later and (self._task is None or len(self.wanted) <= self._small):
            self._start_wait()
        else:
            delay = max(RESTART_DELAY, RESTART_DELAY_PER_QUEUE * len(self.wanted))
            self._restart_timer = asyncio.get_running_loop().call_later(delay, self._start_wait)

    def suspend(self) -> None:
        self._stop()
        self._changed = bool(self.wanted)

    def close(self) -> None:
        self.wanted.clear()
        self._stop()

    def _stop(self) -> None:
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None
        if self._task is not None:
            self._task.cancel()
        self._queues, self._task = [], None

    def _start_wait(self) -> None:
        self._changed = False
        if self._task is None or self.wanted.keys() != set(self._queues):
            self._stop()
            self._create_task()
        elif self._restart_timer is not None:
            self._restart_timer.cancel()
            self._restart_timer = None

    def _create_task(self) -> None:
        if self.wanted:
            self._queues = list(self.wanted)
            self._task = asyncio.get_running_loop().create_task(self._wait(self._queues))

    async def _wait(self, queues: list[QueueState]) -> None:
        ready = _any_ready(queues)
        while not ready:
            ready = await self._wait_once(queues)
            if not ready:
                self._on_quiet()
        # The queues that have not become ready need a new wait.
        self._queues, self._task, self._changed = [], None, True
        self._wake_worker()

    async def _wait_once(self, queues: list[QueueState]) -> bool:
        """Wait for one wake-up or timeout, and return whether a queue is ready."""
        began, tokens = time.monotonic(), {queue.name: queue.readiness.token for queue in queues}
        next_poll = min(queue.readiness.poll_at for queue in queues)
        timeout = max(TIMER_TOLERANCE, min(self._poll, next_poll - began))
        if len(queues) > 1 and not all(tokens.values()):
            # Only tokens show which queue ended a wait. Get the missing ones before the wait.
            timeout = 0.0
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
        poll_until = _latest_poll(queues, now)
        for queue in queues:
            queue.readiness.update_after_wait(
                wake.since.get(queue.name, ""), tokens[queue.name], now, poll_until
            )
        # A storage may return before the timeout: wait here for the rest of it.
        await asyncio.sleep(max(0.0, timeout - (now - began)))
        return _any_ready(queues)


def _latest_poll(queues: Sequence[QueueState], now: float) -> float:
    """Return the time until which polls of queues are due with the polls that are due now.

    A poll of one queue brings forward those of the others, so that one request serves all.
    """
    if not any(queue.readiness.poll_at <= now for queue in queues):
        return now
    return now + min(queue.readiness.poll for queue in queues) / 2


def _any_ready(queues: Sequence[QueueState]) -> bool:
    return any(queue.readiness.ready for queue in queues)


def _wake_changed_queues(
    queues: Sequence[QueueState], wake: WaitResult, tokens: Mapping[str, str], now: float
) -> bool:
    """Wake the queues with a newer token or a due job, and return whether a queue was woken.

    If no queue has a newer token or a due job, the cause of the wake-up is unknown: wake the queues without
    a token, or all queues if each has a token. A queue without a token may also have changed with another
    one; in that case the next wait ends at once.
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
        for queue in [queue for queue in queues if not tokens[queue.name]] or queues:
            queue.readiness.wake()
    return woken or not explained
