"""The threads that run `def` handlers. A thread that is free is kept for the next run."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class HandlerThreads(Generic[T]):
    """A pool of threads without a fixed size. `on_result` is called with each result, on the event loop.

    It is not a ThreadPoolExecutor of concurrent.futures, for three reasons. Its pool has a fixed size, so
    handlers that overran would block the others. Python joins its threads at exit, so such a handler would
    keep the process alive. It wakes the event loop once per result instead of once per batch of results.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_result: Callable[[T], None]) -> None:
        self._loop = loop
        self._on_result = on_result
        self._work: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._results: deque[T] = deque()
        self._collect_scheduled = False
        self._numbers = count(1)
        self._started = 0

    def run(self, work: Callable[[], T]) -> None:
        """Run `work` on an idle thread, or on a new thread if all are busy. `work` must not raise.

        Raises RuntimeError, without running `work`, if no thread can be started.
        """
        if not self._idle.acquire(blocking=False):
            name = f"dibs-handler-{next(self._numbers)}"
            threading.Thread(target=self._run_work, name=name, daemon=True).start()
            self._started += 1
        self._work.put(work)

    def close(self) -> None:
        """End idle threads now, and busy threads after their work."""
        for _ in range(self._started):
            self._work.put(None)

    def _run_work(self) -> None:
        while (work := self._work.get()) is not None:
            self._results.append(work())
            # The thread counts as idle before `on_result` is called, because `on_result` may call `run` at
            # once.
            self._idle.release()
            # `_collect_results` resets the flag before it takes results, so a result that is added after the
            # last one was taken schedules the next call.
            if not self._collect_scheduled:
                self._collect_scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._collect_results)
                except RuntimeError:  # the loop is closed, and the result of a late handler is not needed
                    return

    def _collect_results(self) -> None:
        self._collect_scheduled = False
        while self._results:
            self._on_result(self._results.popleft())
