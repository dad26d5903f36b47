"""Blocking calls under gevent: one greenlet waits for another thread of the system while other greenlets run.

After gevent.monkey.patch_all() Python's threads are greenlets of one thread, and its locks and queues do
not work between threads of the system. So this module uses gevent's async watchers, which do, and the
unpatched functions of the module `_thread`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class GreenletQueue(Generic[T]):
    """A queue between threads of the system, like queue.SimpleQueue. The greenlet that made it takes items.

    Call `close` on the thread that made it: an open watcher keeps gevent's hub alive.
    """

    def __init__(self) -> None:
        import gevent  # noqa: PLC0415 - imported already, by the program that patched
        from gevent.event import Event  # noqa: PLC0415

        self._items: deque[T] = deque()
        self._added = Event()
        self._watcher = gevent.get_hub().loop.async_()
        self._watcher.start(self._added.set)
        # A lock of the system, held for microseconds: a thread may send while the greenlet closes the
        # watcher.
        self._open_lock = _original("allocate_lock")()
        self._open = True

    def put(self, item: T) -> None:
        """Add an item. Any thread may call this, also after `close`."""
        with self._open_lock:
            self._items.append(item)
            if self._open:
                self._watcher.send()

    def get(self) -> T:
        """Wait for an item and return it. Other greenlets of this thread run meanwhile."""
        while not self._items:
            self._added.wait()
            self._added.clear()
        return self._items.popleft()

    def close(self) -> None:
        with self._open_lock:
            self._open = False
            self._watcher.stop()
            self._watcher.close()


def start_loop_on_system_thread() -> asyncio.AbstractEventLoop:
    """Return a new event loop that runs on a new thread of the system, until the process ends.

    Greenlets see the running loop of their thread, so on this thread every greenlet would seem to be in a
    coroutine: `asyncio.run`, Django's ORM and blocking calls of dibs would be refused in all of them.

    This thread blocks with all its greenlets until the loop runs, for about a millisecond.
    """
    started: list[asyncio.AbstractEventLoop | Exception] = []
    has_started = _original("allocate_lock")()
    has_started.acquire()

    def run_loop() -> None:
        # Made on its own thread, because its selector waits on the hub of the thread that makes it. Not a
        # loop of uvloop, which would not let the greenlets of this thread run.
        try:
            loop = asyncio.SelectorEventLoop()
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            started.append(error)
            has_started.release()
            return
        started.append(loop)
        loop.call_soon(has_started.release)
        loop.run_forever()

    _original("start_new_thread")(run_loop, ())
    has_started.acquire()
    if isinstance(started[0], Exception):
        raise started[0]
    return started[0]


def _original(name: str) -> Any:
    """Return a function of the module `_thread` as it was before gevent patched it."""
    from gevent.monkey import get_original  # noqa: PLC0415

    return get_original("_thread", name)
