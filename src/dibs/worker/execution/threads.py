"""The threads that run `def` handlers: as many as are busy at once, kept for the next."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Threads(Generic[T]):
    """Runs work on threads and hands what it returns to `collect`, on the loop.

    Not concurrent.futures: its pool has a fixed size, so handlers that overran would starve the rest; its
    threads are joined at exit, so such a handler would keep the process alive; and it wakes the loop once
    per result instead of once per batch.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Callable[[T], None]) -> None:
        self._loop = loop
        self._collect = collect
        self._work: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._done: deque[T] = deque()
        self._told = False
        self._numbers = count(1)
        self._started = 0

    def run(self, work: Callable[[], T]) -> None:
        """Run it as soon as a thread has begun; it must not raise."""
        self._work.put(work)
        if not self._idle.acquire(blocking=False):
            self._started += 1
            name = f"dibs-handler-{next(self._numbers)}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def close(self) -> None:
        """Let idle threads end, and busy ones after their work."""
        for _ in range(self._started):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            self._done.append(work())
            # Before the result is out: whoever collects it may have the next work at once.
            self._idle.release()
            # Told before anything is collected, so a result put in behind the last one tells anew.
            if not self._told:
                self._told = True
                try:
                    self._loop.call_soon_threadsafe(self._gather)
                except RuntimeError:  # the loop is closed: nobody wants the result of a late handler
                    return

    def _gather(self) -> None:
        self._told = False
        while self._done:
            self._collect(self._done.popleft())
