"""Progress bars of long commands, and the question before a command that changes many jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import rich_click as click

from dibs.cli.errors import UsageError
from dibs.cli.output import escape, print_warning

#: Least number of items for which a bar is drawn. Fewer items take less than a second.
LEAST_ITEMS: Final = 1000

#: Called with the number of items that are done, an absolute number.
Advance = Callable[[int], None]


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Advance]:
    """Yield a function that sets the number of items done of `total`.

    The bar is drawn on stderr if stderr is a terminal and `total` is at least LEAST_ITEMS, or None if it is
    unknown. It is removed at the end of the block.
    """
    if not sys.stderr.isatty() or (total is not None and total < LEAST_ITEMS):
        yield lambda _done: None
        return
    # Imported here, because only a terminal needs rich, which is slow to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(escape(label), total=total)
        yield lambda done: progress.update(bar, completed=done)


def check_can_confirm(*, yes: bool) -> None:
    """Raise UsageError if a command has to ask and there is no terminal: a program cannot answer."""
    if not yes and not sys.stdin.isatty():
        raise UsageError(
            "this command changes many jobs and cannot ask without a terminal: confirm with --yes"
        )


def confirm(question: str, *, yes: bool) -> bool:
    """Ask a question in the terminal and return whether the answer is yes; with `yes`, return True."""
    if yes or click.confirm(escape(question), err=True):
        return True
    print_warning("nothing was changed")
    return False
