"""Displays of the demo: a progress bar in a terminal, plain lines elsewhere, and none for --json."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Protocol

from dibs.cli.output import escape, print_lines

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Shortest time between two lines about progress, s.
LINE_INTERVAL = 2.0
#: Indentation of the later lines of a folded text: the width of the labels of the demo.
INDENT = " " * 14


class Display(Protocol):
    """The output of the demo while it runs: printed lines, and one progress bar at a time."""

    def print_lines(self, *lines: str) -> None:
        """Print lines above the progress bar."""

    def begin(self, what: str, total: int) -> None:
        """Start a progress bar with the label `what`, from 0 to `total`."""

    def advance(self, done: int) -> None:
        """Set the progress to `done`, an absolute number and not a step."""

    def end(self) -> None:
        """Remove the progress bar; does nothing without one."""


def display_for(*, json: bool) -> Display:
    """Return the display that fits --json and whether stdout is a terminal."""
    if json:
        return NoDisplay()
    return TerminalDisplay() if sys.stdout.isatty() else PlainDisplay()


class NoDisplay:
    """The display for --json: it prints nothing, because the command prints the result at the end."""

    def print_lines(self, *lines: str) -> None:
        pass

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        pass

    def end(self) -> None:
        pass


class PlainDisplay:
    """Plain lines, for a file or a pipe."""

    def __init__(self) -> None:
        self._what = ""
        self._total = 0
        self._last_line_at = 0.0

    def print_lines(self, *lines: str) -> None:
        print_lines(*lines)

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._last_line_at = what, total, time.monotonic()

    def advance(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last_line_at >= LINE_INTERVAL:
            self._last_line_at = now
            print_lines(f"  {self._what}: {done:,} of {self._total:,}")

    def end(self) -> None:
        pass


class TerminalDisplay:
    """A progress bar below the printed lines."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def print_lines(self, *lines: str) -> None:
        folded = [part for line in lines for part in fold_line(line)]
        if self._progress is None:
            print_lines(*folded)
            return
        for line in folded:
            self._progress.console.print(escape(line), markup=False, highlight=False, emoji=False)

    def begin(self, what: str, total: int) -> None:
        # Imported here, because only a terminal needs rich, which is slow to import.
        from rich import progress  # noqa: PLC0415

        self.end()
        columns = (
            progress.TextColumn("  {task.description:<9}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        self._progress = progress.Progress(*columns, transient=True)
        self._bar = self._progress.add_task(what, total=total)
        self._progress.start()

    def advance(self, done: int) -> None:
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=done)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = self._bar = None


def fold_line(line: str) -> list[str]:
    """Return the parts of a line that fit the terminal, folded between words and indented by INDENT."""
    width = shutil.get_terminal_size().columns
    return textwrap.wrap(line, width, subsequent_indent=INDENT, break_long_words=False) or [""]
