"""Shared calls of `Storage.wait`: waiters for ids of one queue that begin at the same time share one call.

10,000 calls of `ticket.result()` then cost the storage about 600 waits instead of 10,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from typing import Final

from attrs import define, field

from dibs.client.connection.pending_calls import copy_error
from dibs.errors import StorageError
from dibs.model.job import Outcome
from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage
from dibs.storage.sleeper import Sleeper

#: Most waiters of a group. A group waits again after each end of one of its ids, and the cost of that grows
#: with the number of ids. With 16 ids in memory, a burst of ends one by one costs as much as with a separate
#: wait for each id; with 32 ids it costs half as much again.
MAX_WAITERS: Final = 16
#: Seconds of one call of `Storage.wait`, and of the pause after a call that failed.
WAIT_SECONDS: Final = 1.0


class EndWaiter(Sleeper):
    """A waiter for the end of one id. Its sleep ends when the id may have ended, or when the wait fails."""

    def __init__(self, id: str) -> None:
        super().__init__()
        self.id = id
        #: The outcome in the latest wake-up, if the storage sent it.
        self.outcome: Outcome | None = None
        #: The error that ended the shared wait. The waiter raises it.
        self.error: Exception | None = None

    def take_outcome(self) -> Outcome | None:
        """Reset the wake-up and return the outcome that it carried. Raises its error."""
        outcome, error = self.outcome, self.error
        self.outcome = self.error = None
        self.reset()
        if error is not None:
            raise error
        return outcome


@define(eq=False)
class WaitGroup:
    """The waiters of one call of `Storage.wait`, and the task that repeats this call until all have left."""

    _storage: Storage
    _queue: str
    #: The groups that accept waiters, by queue. The group removes itself when its first call begins.
    _starting: dict[str, WaitGroup]
    _waiters: set[EndWaiter] = field(factory=set, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def is_full(self) -> bool:
        return len(self._waiters) >= MAX_WAITERS

    @property
    def is_ended(self) -> bool:
        """True if no call will wake the waiters: the wait failed, or its task was cancelled."""
        return self._task is None or self._task.done()

    def add(self, waiter: EndWaiter) -> None:
        self._waiters.add(waiter)

    def start(self) -> None:
        """Begin the first call of `Storage.wait` in the next iteration of the event loop."""
        # An empty context, because the wait belongs to all of its waiters and not to the first one alone.
        self._task = asyncio.create_task(self._wait_until_left(), context=Context())

    def leave(self, waiter: EndWaiter) -> None:
        """Remove a waiter. The last one cancels the wait."""
        self._waiters.discard(waiter)
        if not self._waiters and self._task is not None:
            self._close()
            self._task.cancel()

    def _close(self) -> None:
        """Accept no more waiters."""
        if self._starting.get(self._queue) is self:
            del self._starting[self._queue]

    async def _wait_until_left(self) -> None:
        self._close()
        since: Mapping[str, str] | None = None
        try:
            while self._waiters:
                ids = [waiter.id for waiter in self._waiters]
                try:
                    wakeup = await self._storage.wait(
                        [self._queue], for_="ids", ids=ids, since=since, timeout=WAIT_SECONDS
                    )
                except StorageError:
                    # A lost wake-up costs latency and not correctness, because the waiters poll. If the
                    # storage is down, reading the state raises.
                    await asyncio.sleep(WAIT_SECONDS)
                    continue
                self._wake_ended(wakeup)
                since = wakeup.since
                await asyncio.sleep(0)  # let waiters whose id ended leave, so that a group of one ends here
        except Exception as error:  # noqa: BLE001 - each waiter must get the error
            for waiter in self._waiters:
                waiter.error = copy_error(error)
        finally:
            for waiter in self._waiters:
                waiter.wake()

    def _wake_ended(self, wakeup: WaitResult) -> None:
        if not wakeup.woken and not wakeup.outcomes:
            return
        for waiter in self._waiters:
            if wakeup.ended is None or waiter.id in wakeup.ended:
                waiter.outcome = wakeup.outcomes.get(waiter.id)
                waiter.wake()


@define(eq=False)
class SharedWaits:
    """The waits for ids on an open storage.

    Waiters of a queue that join in the same iteration of the event loop share calls of `Storage.wait`.
    """

    _storage: Storage
    _starting: dict[str, WaitGroup] = field(factory=dict, init=False)

    def join(self, queue: str, waiter: EndWaiter) -> WaitGroup:
        """Add a waiter to a group, and return the group. The caller calls its `leave` at the end.

        The group calls `Storage.wait` in the next iteration of the event loop. The waiter reads the state of
        its id after it has joined.
        """
        group = self._starting.get(queue)
        if group is not None and not group.is_full:
            group.add(waiter)
            return group
        group = self._starting[queue] = WaitGroup(self._storage, queue, self._starting)
        group.add(waiter)
        group.start()
        return group
