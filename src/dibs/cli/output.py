"""What people and programs get to read: tables and plain lines for the one, JSON for the other."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


class Code(IntEnum):
    """How a verb ended, as the shell sees it."""

    DONE = 0
    REFUSED = 1
    WRONG_WORDS = 2
    UNKNOWN_OUTCOME = 3
    INTERRUPTED = 130


#: user:password@ in anything that looks like a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def plain(text: object) -> str:
    """Return text that cannot move the cursor, turn round or break a table, and holds no password."""
    shown = "".join(ch if ch.isprintable() else _escaped(ch) for ch in str(text))
    return _CREDENTIALS.sub("***@", shown)


def _escaped(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")


def say(*lines: object) -> None:
    """Print lines for people on stdout."""
    for line in lines:
        print(plain(line), flush=True)  # noqa: T201 - this is where the command line prints


def warn(*lines: object) -> None:
    """Print lines for people on stderr, where they disturb no program that reads stdout."""
    for line in lines:
        print(f"dibs: {plain(line)}", file=sys.stderr, flush=True)  # noqa: T201


def write_json(value: Any, *, error: bool = False) -> None:
    """Print one JSON value on one line."""
    text = msgspec.json.encode(value).decode()
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


@lru_cache(maxsize=1)
def width_without_terminal() -> int:
    """Return how wide a table may be that nobody's terminal has to hold: what is piped on is never cut."""
    return 10_000


def console() -> Console:
    """Return where tables go. Rich is imported here, not above: most verbs for programs never need it."""
    from rich.console import Console  # noqa: PLC0415

    width = None if sys.stdout.isatty() else width_without_terminal()
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A column whose name begins with '#' holds numbers: it is set to the right."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        number = name.startswith("#")
        grid.add_column(
            name.lstrip("#"), justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for row in rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    where = console()
    with where.capture() as drawn:
        where.print(grid)
    # Rich draws this box with an empty line above and below, and fills every line up with spaces.
    print("\n".join(line.rstrip() for line in drawn.get().splitlines() if line.strip()))  # noqa: T201
