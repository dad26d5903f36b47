"""Calls whose answers several pages and viewers share for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from attrs import define, field

from dibs.storage.read_limits import read_limit

#: Seconds after which a page stops waiting for the storage, and after which a server ends a read.
READ_TIMEOUT: Final = 5.0

T = TypeVar("T")


@define(eq=False)
class SharedCall(Generic[T]):
    """A call with its latest answer. Concurrent callers of an event loop share one call."""

    call: Callable[[], Coroutine[Any, Any, T]]
    _task: asyncio.Task[T] | None = field(default=None, init=False)
    #: Time at which the latest call began, on the monotonic clock.
    _begun: float = field(default=0.0, init=False)

    async def answer(self, max_age: float) -> T:
        """Return the answer of a call that began at most `max_age` seconds ago. Raises its errors."""
        loop, task = asyncio.get_running_loop(), self._task
        if task is None or task.get_loop() is not loop or not self._is_usable(task, max_age):
            # An empty context, because the call belongs to all callers and not to the first one.
            context = Context()
            context.run(read_limit.set, READ_TIMEOUT)
            task = self._task = loop.create_task(self.call(), context=context)
            # Without this, asyncio logs the error of a call whose callers have all gone.
            task.add_done_callback(_retrieve_error)
            self._begun = monotonic()
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Make the next caller begin a new call, as after a write."""
        self._task = None

    def _is_usable(self, task: asyncio.Task[T], max_age: float) -> bool:
        if not task.done():
            return True
        failed = task.cancelled() or task.exception() is not None
        return not failed and monotonic() - self._begun < max_age


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
