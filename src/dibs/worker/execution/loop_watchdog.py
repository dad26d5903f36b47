"""A watchdog of the event loop: it names handlers that block the loop, as time.sleep() does.

A thread asks the loop for an answer a few times a second, so a run costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Final

from dibs.worker.execution.hooks import call_hook_function
from dibs.worker.execution.invocation import Invocation, call_async_handler

logger = logging.getLogger("dibs.worker")

#: Seconds between two questions to the event loop.
ASK_EVERY: Final = 0.2
#: Seconds of one run without an answer after which it blocks the loop, in two equal parts. With the time
#: until the question, each blockage of more than a second is found, unless other runs have just blocked the
#: loop: then it takes up to PATIENCE / 2 more.
PATIENCE: Final = 0.8

#: The functions of dibs that call code of the application on the loop, and the name of that code.
_CALLERS: Final[dict[CodeType, str]] = {
    call_async_handler.__code__: "the handler",
    call_hook_function.__code__: "the hook after the run",
}


class LoopWatchdog:
    """A thread that warns once of each handler and hook that blocks the event loop of this thread.

    A handler that holds the interpreter (the GIL) blocks this thread, too; the supervisor finds it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, is_busy: Callable[[], bool]) -> None:
        self._loop = loop
        self._is_busy = is_busy
        self._loop_thread = threading.get_ident()
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._warned: set[tuple[str, str]] = set()
        threading.Thread(target=self._watch, name="dibs-watchdog", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(ASK_EVERY):
            if self._is_busy() and not self._ask_loop():
                return

    def _ask_loop(self) -> bool:
        """Ask the loop for an answer, and warn of the code that blocks it. Return False if it is closed."""
        self._answered.clear()
        try:
            self._loop.call_soon_threadsafe(self._answered.set)
        except RuntimeError:
            return False
        # Warn only if the same run blocks throughout: short steps of many runs also keep the loop busy.
        suspect, periods = None, 0
        while not self._answered.wait(PATIENCE / 2) and not self._closed.is_set():
            found = self._find_blocking_run()
            # The first run that is found counts from the time of the question.
            periods = periods + 1 if found == suspect or suspect is None else 0
            suspect = found
            if periods == 2 and found is not None:
                self._warn(*found)
        return True

    def _find_blocking_run(self) -> tuple[str, Invocation] | None:
        """Return the name of the code of the application on the loop, and its run."""
        for frame in self._frames():
            if what := _CALLERS.get(frame.f_code):
                return what, frame.f_locals["invocation"]
        return None

    def _frames(self) -> Iterator[FrameType]:
        """Yield the frames of the loop's thread, the innermost first."""
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way to another thread
        while frame is not None:
            yield frame
            frame = frame.f_back

    def _warn(self, what: str, invocation: Invocation) -> None:
        if (what, invocation.handler.queue) in self._warned:
            return
        self._warned.add((what, invocation.handler.queue))
        logger.warning(
            "%s: %s has blocked the event loop for %g s (%s), so no other job of this process could go on. "
            "Await instead, for example asyncio.sleep() for time.sleep(), or write it with `def`: it then "
            "runs on a thread",
            invocation.handler.queue, what, PATIENCE, self._location(invocation), extra=invocation.log_fields,
        )  # fmt: skip

    def _location(self, invocation: Invocation) -> str:
        """Return the line that blocks, of the file of the handler if that file is on the stack."""
        code = getattr(invocation.handler.function, "__code__", None)
        frames = list(self._frames())
        own = [frame for frame in frames if code and frame.f_code.co_filename == code.co_filename]
        frame = (own or frames)[0]
        return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
