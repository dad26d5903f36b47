"""The display of `dibs worker` in a terminal, and the exit code of a worker."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from attrs import define, field

from dibs.cli.output import ExitCode, escape
from dibs.cli.tables import table_lines
from dibs.client.sync.stop_signals import SIGNAL_LISTENERS
from dibs.telemetry.logs import JobContextFilter, JsonFormatter, TerminalFormatter

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.worker import WorkReport

#: Environment variable in which `dibs worker --reload` passes its process group to the worker. The worker has
#: a group of its own, because Ctrl-C in the terminal must not reach it.
PARENT_GROUP_VARIABLE: Final = "DIBS_PARENT_GROUP"


def is_in_foreground() -> bool:
    """Return whether the shell waits for this process and shows no prompt.

    It shows a prompt if the process was started with `&`, or stopped and continued in the background.
    """
    try:
        foreground = os.tcgetpgrp(sys.stdout.fileno())
    except OSError:
        # It is not the controlling terminal of this process, so no shell prints a prompt on it.
        return True
    return foreground in (os.getpgrp(), int(os.environ.get(PARENT_GROUP_VARIABLE, "0")))


#: Counters of a WorkReport and their column headings, short enough for a terminal of 80 columns.
COLUMNS: Final = {
    "running": "running", "completed": "done", "failed": "failed", "retried": "retried",
    "timed_out": "timeouts", "stalled": "stalls", "cancelled": "cancelled",
}  # fmt: skip


def set_up_logging(level: str | None) -> None:
    """Log to stderr: plain lines in a terminal, one JSON value a line elsewhere.

    Call it after the import of the application, whose own logging stays. `level` is the value of
    --log-level. None keeps the level that the application has set; without one, it is "info".
    """
    from dibs.worker.processes.logs import (  # noqa: PLC0415 - slow: it imports the client
        ConsoleHandler,
        add_console_handler,
        enable_dibs_loggers,
    )

    handler = ConsoleHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(TerminalFormatter())
    else:
        handler.setFormatter(JsonFormatter())
        handler.addFilter(JobContextFilter())
    add_console_handler(handler, logging.INFO)
    if level is not None:
        logging.getLogger("dibs").setLevel(level.upper())
    enable_dibs_loggers()


@contextmanager
def live_table(*, json: bool) -> Iterator[Callable[[WorkReport], None] | None]:
    """Yield a function that shows a report in a live table, or None without a terminal or with `json`.

    A process in the background draws no table, because it would overwrite the prompt of the shell.
    """
    if json or not sys.stdout.isatty() or not is_in_foreground():
        yield None
        return
    # Imported here, because only a terminal needs rich, which is slow to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for handler in (*logging.getLogger().handlers, *logging.getLogger("dibs").handlers):
            # Rich replaced sys.stderr: log through it, so that lines appear above the table.
            if isinstance(handler, logging.StreamHandler) and handler.stream is not sys.stderr:
                handler.setStream(sys.stderr)

        def show(report: WorkReport) -> None:
            if is_in_foreground():
                live.update(Text(report_table(report, console.width)), refresh=True)

        yield show


def report_table(report: WorkReport, width: int) -> str:
    """Return a table with a row for each queue, at most `width` wide, and a line about the processes."""
    where = f"{len(report.processes)} processes" if report.processes else "this process"
    crashes = f", {report.crashes} crashed" if report.crashes else ""
    overruns = f", {report.overruns} overran" if report.overruns else ""
    rows = [
        [escape(queue), *(f"{getattr(numbers, name):,}" for name in COLUMNS)]
        for queue, numbers in sorted(report.queues.items())
    ]
    head, body = table_lines(["queue", *(f"#{heading}" for heading in COLUMNS.values())], rows, width)
    return "\n".join([*head, *body, f"{where}{crashes}{overruns}; {report.seconds:.0f} s"])


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
