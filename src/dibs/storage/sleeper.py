"""The sleep of a wait: until it is woken, or for so long."""

from __future__ import annotations

import asyncio


class Sleeper:
    """One at a time sleeps on it, on the event loop where it was made.

    A future for each sleep, and a timer that ends it: an Event under asyncio.timeout takes twice the CPU.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        #: It was woken since it was made, or since its owner took note of that.
        self.woken = False
        self._asleep: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """End the sleep, or the next one before it begins. On its own loop's thread."""
        self.woken = True
        self._rouse()

    async def sleep(self, seconds: float | None) -> bool:
        """Sleep until woken, or so many seconds (None: for ever); tell whether it was woken, also before."""
        if self.woken:
            return True
        self._asleep = self.loop.create_future()
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self._rouse)
        try:
            await self._asleep
        finally:
            if timer is not None:
                timer.cancel()
        return self.woken

    def _rouse(self) -> None:
        if self._asleep is not None and not self._asleep.done():
            self._asleep.set_result(None)
