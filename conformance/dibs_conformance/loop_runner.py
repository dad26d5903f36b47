"""An event loop that runs coroutines for synchronous callers, and ends calls that do not return."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from math import inf
from types import FrameType
from typing import Any, Final, TypeVar

from attrs import define

from dibs_conformance.report.exceptions import (
    StorageExited,
    StorageFailed,
    awaiting_frames,
    exception_failure,
    hang_failure,
    thread_frames,
)

T = TypeVar("T")

#: Seconds in which one call must return.
CALL_SECONDS: Final = 60.0
#: Seconds in which a test of many calls must return, such as a probe.
TEST_SECONDS: Final = 900.0


@define
class HangLimits:
    """The time after which a call, and a test of many calls, counts as one that never returns, in seconds."""

    call: float = CALL_SECONDS
    test: float = TEST_SECONDS


LIMITS: Final = HangLimits()
#: Exceptions of a storage that `except Exception` does not catch.
NO_EXCEPTIONS: Final = (
    asyncio.CancelledError,
    SystemExit,
    GeneratorExit,
    StorageExited,
    BaseExceptionGroup,
)
#: Loops with a call that hangs. A reference keeps them from being collected, which would warn.
LOST: Final[list[asyncio.AbstractEventLoop]] = []


class LoopRunner:
    """An event loop of its own. `run` raises StorageFailed for a call that hangs or exits the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_lost = False

    def run(self, work: Coroutine[Any, Any, T], limit: float | None = None) -> T:
        """Return the result of `work`, which must end within `limit` seconds. The default is LIMITS.call.

        Exceptions that are no Exception, such as SystemExit, become a StorageFailed.
        """
        seconds = LIMITS.call if limit is None else limit
        task = self._loop.create_task(work)
        timer = self._loop.call_later(seconds, self._loop.stop)
        try:
            with WATCHDOG.watching(seconds):
                self._loop.run_until_complete(task)
                return task.result()
        except RuntimeError:
            if task.done():
                raise
            raise StorageFailed(hang_failure(awaiting_frames(task.get_coro()), seconds)) from None
        except (
            asyncio.CancelledError,
            SystemExit,
            GeneratorExit,
            StorageExited,
            BaseExceptionGroup,
        ) as error:
            raise StorageFailed(exception_failure(error)) from None
        finally:
            timer.cancel()
            if not task.done():
                self._is_lost = True
                LOST.append(self._loop)

    def close(self) -> None:
        """Close the loop. A loop with a call that hangs is left alone."""
        if not self._is_lost:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by the watchdog. An event loop ends on a KeyboardInterrupt only."""


class Watchdog:
    """A thread that interrupts the main thread when a call blocks it for too long, as `time.sleep` does."""

    #: Not SIGINT: a job in the background of a shell ignores it, and asyncio.Runner replaces its handler.
    SIGNAL: Final = signal.SIGURG

    def __init__(self) -> None:
        self._deadline, self._limit = inf, 0.0
        self._thread: threading.Thread | None = None
        self._found: StorageFailed | None = None

    @contextmanager
    def watching(self, limit: float) -> Iterator[None]:
        """Raise StorageFailed if the block takes `limit` seconds and one more.

        Outside the main thread, which signals cannot interrupt, do nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if self._thread is None:
            signal.signal(self.SIGNAL, self._interrupt)
            self._thread = threading.Thread(target=self._watch, name="kit-watchdog", daemon=True)
            self._thread.start()
        self._limit, self._deadline = limit, time.monotonic() + limit + 1.0
        try:
            yield
        except Interrupted:
            assert self._found is not None  # noqa: S101
            raise self._found from None
        finally:
            self._deadline = inf

    def _watch(self) -> None:
        while True:
            time.sleep(0.5)
            if time.monotonic() > self._deadline:
                self._deadline = inf
                main = threading.main_thread().ident
                self._found = StorageFailed(hang_failure(thread_frames(main), self._limit))
                with suppress(ProcessLookupError):
                    signal.pthread_kill(main or 0, self.SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise Interrupted


WATCHDOG: Final = Watchdog()


@contextmanager
def without_exits() -> Iterator[None]:
    """Make os._exit raise StorageExited in this process. Forked processes exit as before."""
    leave, process = os._exit, os.getpid()

    def refuse(status: int) -> None:
        if os.getpid() != process:
            leave(status)
        raise StorageExited(f"os._exit({status}) ends the process of the caller")

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave
