"""One wait: what it watches, and how long it may take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from threading import get_ident

from dibs.storage.indexed.index import Index
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper


class Waiter(Sleeper):
    """One wait: what it watches, and the loop it is to be woken on."""

    def __init__(self, watch: Watch, queues: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__()
        self.watch = watch
        self.queues = queues
        self.ids = frozenset(ids)
        self._thread = get_ident()

    def wake(self) -> None:
        """End the wait, from whatever thread this is."""
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            if self._thread == get_ident():
                # Its loop does not sleep while we are here, so the call to the system that wakes it is saved.
                super().wake()
            else:
                self.loop.call_soon_threadsafe(super().wake)


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
