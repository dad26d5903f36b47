"""One wait: what it watches, and how long it may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import get_ident

from dibs.storage.indexed.index import Index
from dibs.storage.protocol import Watch


class Waiter:
    """One wait: what it watches, and the loop it is to be woken on.

    A future for each sleep, and a timer that ends it: an Event under asyncio.timeout takes twice the CPU.
    """

    def __init__(self, watch: Watch, queues: Sequence[str], ids: Sequence[str]) -> None:
        self.watch = watch
        self.queues = queues
        self.ids = frozenset(ids)
        self.loop = asyncio.get_running_loop()
        self.woken = False
        self._thread = get_ident()
        self._asleep: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """End the wait, from whatever thread this is."""
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            if self._thread == get_ident():
                # Its loop does not sleep while we are here, so the call to the system that wakes it is saved.
                self._wake()
            else:
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self.woken = True
        self._rouse()

    async def sleep(self, seconds: float | None) -> bool:
        """Sleep until woken, or so long; tell whether it was woken, now or before."""
        if self.woken:
            return True
        self._asleep = self.loop.create_future()
        timer = None if seconds is None else self.loop.call_later(seconds, self._rouse)
        try:
            await self._asleep
        finally:
            if timer is not None:
                timer.cancel()
        return self.woken

    def _rouse(self) -> None:
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)


class Alarm:
    """A moment on the monotonic clock, or never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """How many seconds are left; None for never."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def rang(self) -> bool:
        """Whether the moment has come."""
        return self._at is not None and time.monotonic() >= self._at


def seconds_until_due(index: Index, waiter: Waiter) -> float | None:
    """Return how long it is until the next scheduled job of a wait for work; None when there is none."""
    if waiter.watch != "work":
        return None
    due = [at for name in waiter.queues if (at := index.look(name).next_due()) is not None]
    return max(0.0, min(due) / 1000 - time.time()) if due else None


async def sleep_until(waiter: Waiter, *seconds: float | None) -> bool:
    """Wait until the waiter is woken, or the least of these times is over; tell whether it was woken."""
    limits = [one for one in seconds if one is not None]
    return await waiter.sleep(min(limits) if limits else None)
