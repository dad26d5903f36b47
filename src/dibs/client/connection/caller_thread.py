"""The thread of a blocking call, which runs callbacks, and in tests handlers, while it waits for the
result of the call.

Under gevent one greenlet waits for another thread of the system while other greenlets run. After
gevent.monkey.patch_all() Python's threads are greenlets of one thread, and its locks and queues do not
work between threads of the system. So this module uses gevent's async watchers, which do, and the
unpatched functions of the module `_thread`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from dibs.storage.monkey_patches import gevent_has_patched

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

    A loop on the current thread would be the running loop of all its greenlets, and each would seem to be in
    a coroutine: `asyncio.run`, Django's ORM and blocking calls of dibs would be refused in all of them.

    The current thread blocks with all its greenlets until the loop runs, for about a millisecond.
    """
    thread = LoopThread()
    _original("start_new_thread")(thread.run, ())
    thread.has_started.acquire()
    if thread.error is not None:
        raise thread.error
    _loop_threads.append(thread)
    return thread.loop


class LoopThread:
    """A thread of the system with an event loop. Its locks are the system's, too."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.process: int = os.getpid()
        self.has_started: Any = _original("allocate_lock")()
        self.has_stopped: Any = _original("allocate_lock")()
        self._never: Any = _original("allocate_lock")()
        for lock in (self.has_started, self.has_stopped, self._never):
            lock.acquire()

    def run(self) -> None:
        # The loop is made on its own thread, because its selector waits on the hub of the thread that makes
        # it. It is not a loop of uvloop, which would not let the greenlets of this thread run.
        try:
            self.loop = asyncio.SelectorEventLoop()
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            self.error = error
            self.has_started.release()
            return
        self.loop.call_soon(self.has_started.release)
        self.loop.run_forever()
        self.has_stopped.release()
        # Stay here until the process ends. A return would destroy pending tasks, and asyncio would log each.
        self._never.acquire()

    def stop(self) -> None:
        """Stop the loop, and wait until the thread runs no more code."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.has_stopped.acquire(timeout=STOP_SECONDS)


#: Seconds that the exit of Python waits for the loop to stop.
STOP_SECONDS: Final = 2.0
_loop_threads: Final[list[LoopThread]] = []


def _stop_loop_threads() -> None:
    """Stop the loops of this process before Python ends.

    Python ends a thread that wants to run after that, and the stack of this one holds greenlets. Without the
    stop, one of some 300 runs of a test ended with a segmentation fault after all its output.
    """
    while _loop_threads:
        thread = _loop_threads.pop()
        if thread.process == os.getpid():
            thread.stop()
            _ended_processes.add(thread.process)


_ended_processes: Final[set[int]] = set()


def is_after_end() -> bool:
    """Return whether the exit of Python has stopped the loop that blocking calls need."""
    return bool(_ended_processes) and os.getpid() in _ended_processes


# Registered at the import of dibs, so that it runs after the functions that the program registers later.
atexit.register(_stop_loop_threads)


def _original(name: str) -> Any:
    """Return a function of the module `_thread` as it was before gevent patched it."""
    from gevent.monkey import get_original  # noqa: PLC0415

    return get_original("_thread", name)


#: Seconds between two checks whether the event loop of a blocking call still runs, and so the longest delay
#: of a signal.
CHECK_SECONDS: Final = 0.2


class CallerThread:
    """The thread of a blocking call, which runs callbacks while it waits for the result of the call."""

    def __init__(self) -> None:
        self._callbacks: SimpleQueue[Callable[[], None] | None] | GreenletQueue[Callable[[], None] | None]
        self._callbacks = GreenletQueue() if gevent_has_patched() else SimpleQueue()

    def wait(self, future: concurrent.futures.Future[Any], check: Callable[[], None]) -> None:
        """Run callbacks until `future`, the blocking call, is done. Call it on the thread itself.

        While no callback comes, it calls `check` every CHECK_SECONDS, but not under gevent.
        """
        future.add_done_callback(lambda _: self._callbacks.put(None))
        try:
            while (callback := self._next_callback(check)) is not None:
                callback()
        finally:
            if isinstance(self._callbacks, GreenletQueue):
                self._callbacks.close()

    def _next_callback(self, check: Callable[[], None]) -> Callable[[], None] | None:
        if isinstance(self._callbacks, GreenletQueue):
            return self._callbacks.get()
        while True:
            try:
                return self._callbacks.get(timeout=CHECK_SECONDS)
            except Empty:
                check()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread and return its result. Call it on the event loop."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._callbacks.put(partial(_run_and_set_result, work, done))
        return await asyncio.wrap_future(done)


#: The thread that waits for the current call, or None if the call has no blocked caller.
CALLER_THREAD: Final[ContextVar[CallerThread | None]] = ContextVar("dibs_caller", default=None)


def _run_and_set_result(work: Callable[[], T], done: concurrent.futures.Future[T]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except Exception as error:  # noqa: BLE001 - the call must get the error
        done.set_exception(error)


class HandlerThread(CallerThread):
    """The current thread, which runs callbacks and handlers during each of its blocking calls.

    A handler may make blocking calls itself, and other handlers run during these. So a handler can wait for
    the result of another job.
    """

    def __init__(self) -> None:
        # Not a GreenletQueue, whose wait cannot be nested: tests are not patched by gevent.
        self._callbacks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.get_ident()

    @property
    def is_current(self) -> bool:
        """True if the code runs on this thread."""
        return self._thread == threading.get_ident()

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` on the thread, after the work that was started before. Return at once."""
        self._callbacks.put(work)

    def wait(self, future: concurrent.futures.Future[Any], check: Callable[[], None]) -> None:
        # None only wakes the thread. A nested wait may take it, so each wait checks its own future.
        future.add_done_callback(lambda _: self._callbacks.put(None))
        while not future.done():
            try:
                callback = self._callbacks.get(timeout=CHECK_SECONDS)
            except Empty:
                check()
            else:
                if callback is not None:
                    callback()


#: The thread that runs the handlers of a rehearsal with threads=False, or None.
HANDLER_THREAD: Final[ContextVar[HandlerThread | None]] = ContextVar("dibs_handler_thread", default=None)


def current_handler_thread() -> HandlerThread | None:
    """Return the HandlerThread of this context if this is its thread; a context may be copied to others."""
    thread = HANDLER_THREAD.get()
    return thread if thread is not None and thread.is_current else None
