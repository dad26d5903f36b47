"""Calls that other threads make on the main thread of a process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue

from attrs import define, field

from dibs.model.run_outcome import Verdict


@define(eq=False)
class MainThread:
    """The main thread of an isolated process. It waits in `serve` for the calls of the event loop."""

    _calls: SimpleQueue[tuple[Callable[[], Verdict], Future[Verdict]] | None] = field(
        factory=SimpleQueue, init=False
    )

    async def call(self, function: Callable[[], Verdict]) -> Verdict:
        """Call `function`, which must not raise, on the main thread, and return its verdict."""
        result: Future[Verdict] = Future()
        self._calls.put((function, result))
        return await asyncio.wrap_future(result)

    def stop(self) -> None:
        """Let `serve` return after the calls so far."""
        self._calls.put(None)

    def serve(self) -> None:
        """Make the calls, one after the other, until `stop`. To be called on the main thread."""
        while (item := self._calls.get()) is not None:
            function, result = item
            with restored_signals():
                verdict = function()
            result.set_result(verdict)


@contextmanager
def restored_signals() -> Iterator[None]:
    """Cancel the alarm that the block has set, and restore the signal handlers that it has replaced.

    The process is used again: an alarm of one job would go off in the next one.
    """
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        for number, handler in before.items():
            # None: the handler is not of Python, and cannot be restored.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
