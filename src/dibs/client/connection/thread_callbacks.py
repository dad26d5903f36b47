"""Callbacks from the event loop to the thread of a blocking call.

A call such as `queue.sync.enqueue(..., connection=...)` runs on the event loop of the app, while its thread
waits. A blocking database connection may be used only on that thread. So the event loop sends the thread
callbacks, which use the connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from dibs.client.connection.greenlets import GreenletQueue
from dibs.storage.monkey_patches import gevent_has_patched

T = TypeVar("T")

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
