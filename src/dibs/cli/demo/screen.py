"""Where the demo shows itself: a terminal with a bar, plain lines elsewhere, or nothing for --json."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol

from dibs.cli.output import plain, say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: How often plain lines tell of progress, s.
PLAIN_EVERY = 2.0


class Screen(Protocol):
    """What the demo wants shown."""

    def say(self, *lines: str) -> None:
        """Show lines."""

    def begin(self, what: str, total: int) -> None:
        """Begin to count something."""

    def advance(self, done: int) -> None:
        """Show how far the count is."""

    def end(self) -> None:
        """Take the bar away."""


def screen_for(*, json: bool) -> Screen:
    """Return what fits this stdout."""
    if json:
        return Silent()
    return Terminal() if sys.stdout.isatty() else Lines()


class Silent:
    """Shows nothing: the JSON at the end says it all."""

    def say(self, *lines: str) -> None:
        pass

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, done: int) -> None:
        pass

    def end(self) -> None:
        pass


class Lines:
    """Plain lines, for a file or a log."""

    def __init__(self) -> None:
        self._what = ""
        self._total = 0
        self._told = 0.0

    def say(self, *lines: str) -> None:
        say(*lines)

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._told = what, total, time.monotonic()

    def advance(self, done: int) -> None:
        now = time.monotonic()
        if now - self._told >= PLAIN_EVERY:
            self._told = now
            say(f"  {self._what}: {done:,} of {self._total:,}")

    def end(self) -> None:
        pass


class Terminal:
    """A bar that stays below the lines."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def say(self, *lines: str) -> None:
        if self._progress is None:
            say(*lines)
            return
        for line in lines:
            self._progress.console.print(plain(line), markup=False, highlight=False, emoji=False)

    def begin(self, what: str, total: int) -> None:
        # Only a terminal pays for the import.
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
