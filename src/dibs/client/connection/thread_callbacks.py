"""Work that a call, running where the app is open, hands back to the thread that waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

T = TypeVar("T")


class CallerThread:
    """A thread that waits for a call and does its errands meanwhile."""

    def __init__(self) -> None:
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def wait(self, future: concurrent.futures.Future[Any]) -> None:
        """Do what is asked until the future is done."""
        future.add_done_callback(lambda _: self._errands.put(None))
        while (errand := self._errands.get()) is not None:
            errand()

    async def do(self, work: Callable[[], T]) -> T:
        """Have the thread do it, and return what it returned."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._errands.put(partial(_do, work, done))
        return await asyncio.wrap_future(done)


#: Who waits for this call, if it came from code without async and may have errands.
CALLER_THREAD: Final[ContextVar[CallerThread | None]] = ContextVar("dibs_caller", default=None)


def _do(work: Callable[[], T], done: concurrent.futures.Future[T]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(work())
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the call
        done.set_exception(error)
