"""Writes docs/explanation/lineage.md, what four systems offer and how it is done here, from tests/lineage.

    python tools/print_lineage.py           writes it
    python tools/print_lineage.py --check   fails if it is not current, or a name has no row

`rows/*.toml` are the rows of the tables; `names/*.toml` are the names that must have one: every option,
default, event, state, method and error of a system, written down apart from the rows.
"""

# ruff: noqa: INP001 - a script, imported by nobody but its test

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
#: What a name may be, in the order in which a cell shows them.
KINDS = (
    *("part", "object", "record", "function", "method", "option", "default", "value", "state", "field"),
    *("event", "error", "law", "bug", "feature"),
)

HEADER = """# Where dibs comes from

dibs unites four systems: queasy 0.3 (Node, Redis), Programma 0.0 (Node, Postgres), beequeue 0.3 with its
upstream bee-queue 2.0 (Node, Redis) and @platformatic/job-queue 0.5 (Node; memory, files, Redis, Postgres).
Everything they can do stands below, with the way it is written here and the tests that prove it. The tests
are in `tests/lineage/` and run on every storage. There are no façades of the old interfaces.

A row that begins with *bug* is a defect of that system, and its tests show that dibs does not have it.
*Later* is what is not there yet. Where a document and its code disagree, the document was followed.

<!-- Printed by tools/print_lineage.py from tests/lineage/rows. -->
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: the names it covers, and what stands for them here."""

    names: dict[str, list[str]]
    dibs: str
    tests: list[str] = field(default_factory=list)
    why: str = ""
    later: str = ""

    @property
    def covers(self) -> Iterator[tuple[str, str]]:
        """The names, each with its kind."""
        return ((kind, name) for kind, names in self.names.items() for name in names)


def rows_of(system: str) -> list[Row]:
    """Return the rows of a table. Raises ValueError for a row that says nothing."""
    return [row_of(raw) for raw in read("rows", system)["row"]]


def row_of(raw: dict[str, Any]) -> Row:
    names = {kind: raw.pop(kind) for kind in KINDS if kind in raw}
    row = Row(names=names, **raw)
    if not names or not row.dibs or bool(row.tests) == bool(row.later):
        raise ValueError(f"a row needs names, dibs, and either tests or later: {row}")
    return row


def names_of(system: str) -> set[tuple[str, str]]:
    """Return the names that must have a row, each with its kind."""
    return {(kind, name) for kind, names in read("names", system).items() for name in names}


def read(folder: str, system: str) -> dict[str, Any]:
    return tomllib.loads((LINEAGE / folder / f"{system}.toml").read_text("utf-8"))


def faults(system: str) -> Iterator[str]:
    """Say what is missing or too much in the table of a system."""
    known, seen = names_of(system), set[tuple[str, str]]()
    for row in rows_of(system):
        for name in row.covers:
            if name in seen:
                yield f"{system}: {' '.join(name)} has two rows"
            if name not in known:
                yield f"{system}: {' '.join(name)} is no name of the list"
            seen.add(name)
    yield from (f"{system}: {' '.join(name)} has no row" for name in sorted(known - seen))


def proofs() -> set[str]:
    """Return the names of all tests that a row names."""
    return {test for system in (*SYSTEMS, NONE) for row in rows_of(system) for test in row.tests}


# -- the page ------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the whole page."""
    tables = [f"## {title}\n\n{table(system)}" for system, title in SYSTEMS.items()]
    return "\n".join([HEADER, *tables, f"## Later, and in none of them\n\n{later()}"])


def table(system: str) -> str:
    lines = ["| there | in dibs | proven by | why it differs |", "|---|---|---|---|"]
    lines += [line(cell(row), row.dibs, proof(row), row.why) for row in rows_of(system)]
    return "\n".join(lines) + "\n"


def later() -> str:
    lines = ["| what | in dibs | when, and what there is today |", "|---|---|---|"]
    lines += [line(cell(row), row.dibs, row.later) for row in rows_of(NONE)]
    return "\n".join(lines) + "\n"


def line(*cells: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(row: Row) -> str:
    return "<br>".join(f"{_kind(kind)}{', '.join(names)}" for kind, names in row.names.items())


def _kind(kind: str) -> str:
    """A part of a system's documents opens its rows and needs no word of its own."""
    return "§ " if kind == "part" else f"*{kind}* "


def proof(row: Row) -> str:
    if row.later:
        return f"*later*: {row.later}"
    return ", ".join(f"`{test.removeprefix('test_')}`" for test in row.tests)


def main(words: list[str]) -> int:
    """Write the page, or check it. Return the exit code."""
    found = [fault for system in SYSTEMS for fault in faults(system)]
    for fault in found:
        print(fault, file=sys.stderr)  # noqa: T201 - a script for people
    if found:
        return 1
    if "--check" not in words:
        TARGET.write_text(page(), "utf-8")
        return 0
    if not TARGET.exists() or TARGET.read_text("utf-8") != page():
        print(f"{TARGET} is not current: run python tools/print_lineage.py", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
