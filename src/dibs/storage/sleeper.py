"""The sleep of a wait on its event loop, ended by a wake-up or a timer."""

from __future__ import annotations

import asyncio


class Sleeper:
    """A sleep of one task at a time, on the event loop that created the Sleeper.

    Each sleep is a future and a timer: an asyncio.Event under asyncio.timeout takes twice the CPU.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        #: True after a wake-up, until the owner sets it to False.
        self.woken = False
        self._sleep: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """End the current sleep, or the next one at once. Call it on the thread of the event loop."""
        self.woken = True
        self._end_sleep()

    async def sleep(self, seconds: float | None) -> bool:
        """Sleep until a wake-up or for `seconds` (None for ever).

        Return `woken`, also for an earlier wake-up.
        """
        if self.woken:
            return True
        self._sleep = self.loop.create_future()
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self._end_sleep)
        try:
            await self._sleep
        finally:
            if timer is not None:
                timer.cancel()
        return self.woken

    def _end_sleep(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
