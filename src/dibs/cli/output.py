"""Output of the commands: lines and tables for people, JSON for programs, and exit codes."""

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


class ExitCode(IntEnum):
    """The exit codes of all commands; docs/reference/cli.md explains them."""

    DONE = 0
    REFUSED = 1
    USAGE_ERROR = 2
    UNKNOWN_OUTCOME = 3
    INTERRUPTED = 130


#: Matches `user:password@` in text that looks like a URL.
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


def escape(text: object) -> str:
    """Return text that is safe to print: control characters are escaped and passwords in URLs replaced."""
    shown = "".join(ch if ch.isprintable() else _escape_char(ch) for ch in str(text))
    return _CREDENTIALS.sub("***@", shown)


def _escape_char(ch: str) -> str:
    return ch.encode("unicode_escape").decode("ascii")


def print_lines(*lines: object) -> None:
    """Print lines on stdout, with control characters and passwords escaped."""
    for line in lines:
        print(escape(line), flush=True)  # noqa: T201 - the output of a command


def print_warning(*lines: object) -> None:
    """Print lines on stderr, escaped, so that programs that read stdout do not see them."""
    for line in lines:
        print(f"dibs: {escape(line)}", file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Any, *, error: bool = False) -> None:
    """Print a value as JSON on one line, on stdout or with `error` on stderr."""
    text = msgspec.json.encode(value).decode()
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def print_answers(
    queue: str, ids: Sequence[str], answers: Sequence[str], *, good: tuple[str, ...], json: bool
) -> ExitCode:
    """Print the answer of the storage for each id, such as "cancelled" or "not_found".

    Return ExitCode.DONE if all answers are in `good`, else ExitCode.REFUSED.
    """
    if json:
        jobs = [{"id": id, "answer": answer} for id, answer in zip(ids, answers, strict=True)]
        print_json({"queue": queue, "jobs": jobs})
    else:
        width = max(map(len, answers), default=0)
        print_lines(*(f"{answer:<{width}}  {queue}/{id}" for id, answer in zip(ids, answers, strict=True)))
    return ExitCode.DONE if all(answer in good for answer in answers) else ExitCode.REFUSED


@lru_cache(maxsize=1)
def width_without_terminal() -> int:
    """Return the width of tables that go to a file or a pipe, in columns: wide enough to cut no text."""
    return 10_000


def _console() -> Console:
    # Imported here, because commands with --json do not need rich and it is slow to import.
    from rich.console import Console  # noqa: PLC0415

    width = None if sys.stdout.isatty() else width_without_terminal()
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A column whose name begins with '#' holds numbers and is aligned right."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        is_number = name.startswith("#")
        grid.add_column(
            name.lstrip("#"),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in rows:
        grid.add_row(*(Text(escape(cell)) for cell in row))
    console = _console()
    with console.capture() as drawn:
        console.print(grid)
    # Rich draws an empty line above and below this box, and pads each line with spaces: print neither.
    print("\n".join(line.rstrip() for line in drawn.get().splitlines() if line.strip()))  # noqa: T201
