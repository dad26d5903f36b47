"""Writes docs/explanation/lineage.md, which maps the features of four systems to dibs, from tests/lineage.

    python tools/print_lineage.py           writes the page
    python tools/print_lineage.py --check   exits with 1 if the page is not current or a name has no row

`rows/*.toml` hold the rows of the tables. `names/*.toml` hold the names that need a row: every option,
default, event, state, method and error of a system, collected independently of the rows.
"""

# ruff: noqa: INP001 - a script, imported by its test alone

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

PROJECT = Path(__file__).parent.parent
LINEAGE = PROJECT / "tests" / "lineage"
TARGET = PROJECT / "docs" / "explanation" / "lineage.md"

#: File name -> title.
SYSTEMS = {
    "queasy": "queasy",
    "programma": "Programma",
    "beequeue": "beequeue and bee-queue",
    "job_queue": "@platformatic/job-queue",
}
NONE = "none"
#: The kinds of names, in the order of a cell.
KINDS = (
    *("part", "object", "record", "function", "method", "option", "default", "value", "state", "field"),
    *("event", "error", "law", "bug", "feature"),
)

HEADER = """# Four earlier systems

dibs unites four systems: queasy 0.3 (Node, Redis), Programma 0.0 (Node, Postgres), beequeue 0.3 with its
upstream bee-queue 2.0 (Node, Redis) and @platformatic/job-queue 0.5 (Node; memory, files, Redis, Postgres).
The tables below list their features, the equivalent in dibs, and the tests of each equivalent. The tests are
in `tests/lineage/` and run on every storage. dibs has no compatibility layers for the old interfaces.

A row that begins with *bug* is a defect of that system; its tests show that dibs does not have the defect.
*Later* marks a feature that dibs does not have yet. Where the documentation of a system differs from its
code, the table follows the documentation.

<!-- Printed by tools/print_lineage.py from tests/lineage/rows. -->
"""


@frozen(kw_only=True)
class Row:
    """One row of a table: names of the other system, and their equivalent in dibs."""

    names: dict[str, list[str]]
    dibs: str
    tests: list[str] = Factory(list)
    why: str = ""
    later: str = ""

    @property
    def covers(self) -> Iterator[tuple[str, str]]:
        """The (kind, name) pairs of the row."""
        return ((kind, name) for kind, names in self.names.items() for name in names)


def rows_of(system: str) -> list[Row]:
    """Return the rows of a table. Raises ValueError for an incomplete row."""
    return [row_of(raw) for raw in read("rows", system)["row"]]


def row_of(raw: dict[str, Any]) -> Row:
    names = {kind: raw.pop(kind) for kind in KINDS if kind in raw}
    row = Row(names=names, **raw)
    if not names or not row.dibs or bool(row.tests) == bool(row.later):
        raise ValueError(f"a row needs names, `dibs`, and either `tests` or `later`: {row}")
    return row


def names_of(system: str) -> set[tuple[str, str]]:
    """Return the (kind, name) pairs that need a row."""
    return {(kind, name) for kind, names in read("names", system).items() for name in names}


def read(folder: str, system: str) -> dict[str, Any]:
    return tomllib.loads((LINEAGE / folder / f"{system}.toml").read_text("utf-8"))


def errors(system: str) -> Iterator[str]:
    """Yield an error for each name with no row or two rows, and for each row with an unknown name."""
    known, seen = names_of(system), set[tuple[str, str]]()
    for row in rows_of(system):
        for name in row.covers:
            if name in seen:
                yield f"{system}: {' '.join(name)} has two rows"
            if name not in known:
                yield f"{system}: {' '.join(name)} is not in names/{system}.toml"
            seen.add(name)
    yield from (f"{system}: {' '.join(name)} has no row" for name in sorted(known - seen))


def named_tests() -> set[str]:
    """Return the names of all tests that a row names."""
    return {test for system in (*SYSTEMS, NONE) for row in rows_of(system) for test in row.tests}


# -- the page ------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of the page."""
    tables = [f"## {title}\n\n{table(system)}" for system, title in SYSTEMS.items()]
    return "\n".join([HEADER, *tables, f"## Features that none of the four has\n\n{later()}"])


def table(system: str) -> str:
    lines = ["| feature | in dibs | tests | reason for the difference |", "|---|---|---|---|"]
    lines += [table_row(cell(row), row.dibs, proof(row), row.why) for row in rows_of(system)]
    return "\n".join(lines) + "\n"


def later() -> str:
    lines = ["| feature | in dibs | plan, and today's alternative |", "|---|---|---|"]
    lines += [table_row(cell(row), row.dibs, row.later) for row in rows_of(NONE)]
    return "\n".join(lines) + "\n"


def table_row(*cells: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(row: Row) -> str:
    return "<br>".join(f"{_kind(kind)}{', '.join(names)}" for kind, names in row.names.items())


def _kind(kind: str) -> str:
    """Return the prefix of a name. "§" marks a chapter of the system's documentation."""
    return "§ " if kind == "part" else f"*{kind}* "


def proof(row: Row) -> str:
    if row.later:
        return f"*later*: {row.later}"
    return ", ".join(f"`{test.removeprefix('test_')}`" for test in row.tests)


def main(arguments: list[str]) -> int:
    """Write the page, or with --check compare it. Return the exit code."""
    found = [error for system in SYSTEMS for error in errors(system)]
    for error in found:
        print(error, file=sys.stderr)  # noqa: T201 - a script for the command line
    if found:
        return 1
    if "--check" not in arguments:
        TARGET.write_text(page(), "utf-8")
        return 0
    if not TARGET.exists() or TARGET.read_text("utf-8") != page():
        print(f"{TARGET} is not current: run python tools/print_lineage.py", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
