"""Requests to stop a running `app.work`: from a signal, or from `app.stop` on any thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from attrs import define, field, frozen

from dibs.storage.running_loop import running_loop


@frozen
class StopRequest:
    """A request to stop. An `urgent` request after the first request releases the remaining runs at once."""

    #: Seconds that runs may still take; None for the `grace` of `app.work`.
    grace: float | None = None
    #: True for a signal: two signals mean "now". False for `app.stop`, which may be called twice by accident.
    urgent: bool = False


@define(eq=False)
class StopRequests:
    """The requests to stop one call of `app.work`, in the order they came. Created on its event loop."""

    _loop: asyncio.AbstractEventLoop = field(factory=running_loop, init=False)
    _queue: asyncio.Queue[StopRequest] = field(factory=asyncio.Queue, init=False)

    def put(self, request: StopRequest) -> None:
        """Add a request. May be called on any thread, and after the loop was closed."""
        with suppress(RuntimeError):  # the loop is closed, so the call of app.work has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, request)

    async def get(self) -> StopRequest:
        """Wait for the next request and remove it."""
        return await self._queue.get()
