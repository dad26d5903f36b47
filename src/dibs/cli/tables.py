"""Tables for people, which fit a terminal of 80 columns, and tab-separated lines for other programs."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

import rich_click as click

from dibs.cli.options import Format
from dibs.cli.output import echo, escape, print_json, print_lines

#: Spaces between two columns.
GAP: Final = 2
#: Least width of a column whose text is folded.
LEAST_TEXT_WIDTH: Final = 12
#: First characters of the names of columns: numbers, aligned right, and text that is never folded.
NUMBER, WHOLE = "#", "="

Rows = Sequence[Sequence[str]]


def print_in_format(
    output: Format,
    value: Any,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    optional: Collection[str] = (),
    empty: str,
) -> None:
    """Print what a command has read: `value` as JSON, or the rows as lines or as a table.

    A table without rows is the text `empty`. `print_table` explains `columns` and `optional`.
    """
    if output == "json":
        print_json(value)
    elif output == "lines":
        print_tab_separated(rows)
    else:
        print_table(columns, rows, optional=optional, empty=empty)


def print_tab_separated(rows: Iterable[Sequence[object]]) -> None:
    """Print a line for each row: its complete cells between tabs, with control characters escaped."""
    for row in rows:
        echo("\t".join(map(escape, row)))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    optional: Collection[str] = (),
    empty: str = "",
) -> None:
    """Print a table that is not wider than the terminal, or the text `empty` if there are no rows.

    A column whose name begins with '#' holds numbers and is aligned right. Such a column, and one whose name
    begins with '=', is never folded. The columns in `optional` are left out if all their cells are empty or
    zero. Without a terminal, each row is one line.
    """
    cells = [[escape(cell) for cell in row] for row in rows]
    if not cells and empty:
        print_lines(empty)
        return
    shown = [n for n, name in enumerate(columns) if name not in optional or _has_content(cells, n)]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    head, body = table_lines([columns[n] for n in shown], [[row[n] for n in shown] for row in cells], limit)
    # `echo` removes the styles if stdout is not a terminal.
    echo("\n".join([*(click.style(line, bold=True) for line in head), *body]))


def _has_content(cells: Rows, column: int) -> bool:
    return any(row[column] not in ("", "0") for row in cells)


def table_lines(columns: Sequence[str], cells: Rows, limit: int | None) -> tuple[list[str], list[str]]:
    """Return the lines of the headings and those of the rows, at most `limit` columns wide.

    If the columns do not fit beside each other, the first cell of each row gets a line of its own, above the
    other cells. Numbers are never cut, so a row of many long numbers may be wider than `limit`.
    """
    titles = [name.lstrip(NUMBER + WHOLE) for name in columns]
    widths = column_widths(columns, cells, limit)
    if widths is not None:
        rule = "-" * (sum(widths) + GAP * (len(widths) - 1))
        head = [*_row_lines(columns, titles, widths), rule]
        return head, [line for row in cells for line in _row_lines(columns, row, widths)]
    assert limit is not None, "bug in dibs: columns without a limit always fit"  # noqa: S101
    others, indent = columns[1:], " " * GAP
    rest = [row[1:] for row in cells]
    narrow = column_widths(others, rest, limit - GAP) or _full_widths(others, rest)
    head = [titles[0], *(indent + line for line in _row_lines(others, titles[1:], narrow)), "-" * limit]
    body: list[str] = []
    for row in cells:
        body += fold(row[0], limit)
        body += [indent + line for line in _row_lines(others, row[1:], narrow)]
    return head, body


def column_widths(columns: Sequence[str], cells: Rows, limit: int | None) -> list[int] | None:
    """Return the width of each column, or None if the columns need more than `limit` in total.

    Headings are folded between words before text is folded.
    """
    full = _full_widths(columns, cells)
    if limit is None or sum(full) + GAP * (len(full) - 1) <= limit:
        return full
    widths = [
        _least_width(name, width, [row[n] for row in cells])
        for n, (name, width) in enumerate(zip(columns, full, strict=True))
    ]
    spare = limit - GAP * (len(full) - 1) - sum(widths)
    if spare < 0:
        return None
    for _ in range(spare):
        growing = [n for n, width in enumerate(widths) if width < full[n] and not _is_whole(columns[n])]
        if growing:
            widths[min(growing, key=widths.__getitem__)] += 1
    return widths


def _full_widths(columns: Sequence[str], cells: Rows) -> list[int]:
    titles = [cell_width(name.lstrip(NUMBER + WHOLE)) for name in columns]
    return [max([width, *(cell_width(row[n]) for row in cells)]) for n, width in enumerate(titles)]


def _least_width(name: str, full: int, cells: Sequence[str]) -> int:
    if not _is_whole(name):
        return min(full, LEAST_TEXT_WIDTH)
    words = name.lstrip(NUMBER + WHOLE).split()
    return max(map(cell_width, [*words, *cells]))


def _is_whole(name: str) -> bool:
    return name.startswith((NUMBER, WHOLE))


def _row_lines(columns: Sequence[str], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row; a folded cell gives several."""
    folded = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
    return [
        (" " * GAP)
        .join(
            _pad(text, width, right=name.startswith(NUMBER))
            for name, text, width in zip(columns, line, widths, strict=True)
        )
        .rstrip()
        for line in zip_longest(*folded, fillvalue="")
    ]


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - cell_width(text))
    return space + text if right else text + space


def fold(text: str, width: int) -> list[str]:
    """Return the text in lines of at most `width` columns, folded between words where that is possible."""
    if cell_width(text) <= width:
        return [text]
    from rich.cells import chop_cells  # noqa: PLC0415 - as in `cell_width`

    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    # `wrap` counts characters. Chinese, Japanese and Korean ones are two columns wide.
    return [part for line in lines for part in chop_cells(line, width)]


def cell_width(text: str) -> int:
    """Return the number of columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    # Imported here, because most tables have only ASCII text, and rich is slow to import.
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)


def format_age(ms: float) -> str:
    """Return a time span in its largest unit, for example "3 min" or "2 d"; a negative one is "0 s"."""
    seconds = max(0, int(ms // 1000))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
