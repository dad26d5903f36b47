"""A thread of a blocking test that runs handlers while it waits for its calls."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, Final

from dibs.client.connection.thread_callbacks import CHECK_SECONDS, CallerThread


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
