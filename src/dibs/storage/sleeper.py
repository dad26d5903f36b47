"""The sleep inside `Storage.wait`, which a wake-up or a timer ends. All storages use it."""

from __future__ import annotations

import asyncio

from dibs.storage.running_loop import running_loop


class Sleeper:
    """A sleep that another task can end. Only one task may sleep, on the event loop that created the Sleeper.

    Each sleep is a plain future and a timer, because an asyncio.Event under asyncio.timeout takes twice the
    CPU.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = running_loop()
        #: True after a wake-up, until the owner sets it to False.
        self.woken: bool = False
        self._sleep: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """End the current sleep; without one, the next `sleep` returns at once.

        Call it on the thread of the event loop.
        """
        self.woken = True
        self._end_sleep()

    async def sleep(self, seconds: float | None) -> bool:
        """Sleep until `wake` is called, for at most `seconds` (None: no limit). Return whether it was called.

        A `wake` before the call counts, too: then return True at once.
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

    def reset(self) -> None:
        """Forget the wake-ups until now, so that the next `sleep` waits for a later one."""
        self.woken = False

    def _end_sleep(self) -> None:
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
