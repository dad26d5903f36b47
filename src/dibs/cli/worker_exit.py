"""A deadline for the end of `dibs worker` after a stop signal: code of the application may never end."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from attrs import define, field

from dibs.cli.output import ExitCode
from dibs.client.sync.stop_signals import SIGNAL_LISTENERS

logger = logging.getLogger("dibs.worker")

#: Seconds after the grace, or after a second signal, that the worker has to release its jobs and to end.
EXIT_MARGIN: Final = 5.0


@define(eq=False)
class ExitDeadline:
    """A thread that ends this process `grace` + EXIT_MARGIN seconds after the first stop signal.

    With --processes 0, handlers run in this process: one may block the event loop, and a task or thread that
    it started may ignore every request to end.
    """

    _grace: float
    #: The exit code of the process; REFUSED until the worker has released its jobs.
    code: ExitCode = field(default=ExitCode.REFUSED, init=False)
    # A SimpleQueue, because its `put` may be called by a signal handler that interrupts another `put`.
    _signals: queue.SimpleQueue[None] = field(factory=queue.SimpleQueue, init=False)

    def on_signal(self) -> None:
        self._signals.put(None)

    def wait_and_exit(self) -> None:
        """Wait for a signal, then for the deadline, and end the process."""
        self._signals.get()
        deadline = time.monotonic() + self._grace + EXIT_MARGIN
        while (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._signals.get(timeout=left)
                deadline = min(deadline, time.monotonic() + EXIT_MARGIN)
        what = (
            "the jobs are released"
            if self.code == ExitCode.DONE
            else "its jobs return when their lease expires"
        )
        logger.error("code of the application still runs after the grace: the process ends now; %s", what)
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(self.code)


@contextmanager
def exit_deadline(grace: float) -> Iterator[ExitDeadline]:
    """Start the thread, which stays after the block. The caller sets `code` when the jobs are released."""
    deadline = ExitDeadline(grace)
    threading.Thread(target=deadline.wait_and_exit, name="dibs-exit-deadline", daemon=True).start()
    SIGNAL_LISTENERS.append(deadline.on_signal)
    try:
        yield deadline
    finally:
        SIGNAL_LISTENERS.remove(deadline.on_signal)
