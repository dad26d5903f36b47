"""Writes docs/appendix/lineage.md, which maps the features of four systems to dibs, from tests/lineage.

    python tools/print_lineage.py           writes the page
    python tools/print_lineage.py --check   exits with 1 if the page is not current or a name has no row

`rows/*.toml` hold the rows of the tables. `names/*.toml` hold the names that need a row: every option,
default, event, state, method and error of a system, collected independently of the rows. `passages.toml`
holds the passages of the documents, which need a row each.
"""

# ruff: noqa: INP001 - a script, imported by its test alone

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import Factory, frozen

PROJECT: Final = Path(__file__).parent.parent
LINEAGE: Final = PROJECT / "tests" / "lineage"
TARGET = PROJECT / "docs" / "appendix" / "lineage.md"

#: File name -> title.
SYSTEMS: Final = {
    "queasy": "queasy",
    "programma": "Programma",
    "beequeue": "beequeue and bee-queue",
    "job_queue": "@platformatic/job-queue",
}
#: Class of a row -> its meaning. The order is that of the columns of the summary.
CLASSES: Final = {
    "proven": "dibs has the feature, or does not have the bug, and tests prove it",
    "different": "dibs does something else, and the row says why",
    "later": "dibs does not have it yet; the row says what is planned",
}
#: The passage of rows that no document mentions: what only the code of a system shows, most of all its bugs.
CODE: Final = "code"
#: The kinds of names, in the order of a cell.
KINDS: Final[tuple[str, ...]] = (
    *("object", "record", "function", "method", "option", "default", "value", "state", "field"),
    *("event", "error", "law", "bug", "feature", "example", "figure", "plan"),
)

HEADER: Final = """# Four earlier systems

dibs unites four systems: queasy 0.3 (Node, Redis), Programma 0.0 (Node, Postgres), beequeue 0.3 with its
upstream bee-queue 2.0 (Node, Redis) and @platformatic/job-queue 0.5 (Node; memory, files, Redis, Postgres).
This page follows their documents passage by passage, and gives for each feature what dibs does. You do not
need it to use dibs: to change over from one of the systems, read its page among the how-to guides.

<!-- Printed by tools/print_lineage.py from tests/lineage. -->
"""

FOOT_OF_SUMMARY: Final = """
Tests without a path are in `tests/lineage/` and run on every storage; the others are named with their file.
What the storage protocol alone decides is a law of the conformance kit, which checks it on every storage:
these rows name the test of its planted bugs.
A *bug* is a defect of that system, which dibs does not have. Passages on authors, names, badges and licences
have no row. Where the document of a system and its code differ, the row follows the document.
"""


@frozen(kw_only=True)
class Row:
    """One row of a table: names of the other system, and their equivalent in dibs."""

    #: The letter of the system and a number, which stays the same in later versions of the page.
    id: str
    row_class: str
    #: Passages of the documents of the system, or `CODE`.
    passages: list[str]
    names: dict[str, list[str]]
    dibs: str
    #: Tests of tests/lineage, which run on every storage.
    tests: list[str] = Factory(list)
    #: Other tests, as path::name.
    others: list[str] = Factory(list)
    #: The reason for a difference.
    why: str = ""
    #: The feature to come.
    later: str = ""

    @property
    def covers(self) -> Iterator[tuple[str, str]]:
        """The (kind, name) pairs of the row."""
        return ((kind, name) for kind, names in self.names.items() for name in names)


@cache
def rows_of(system: str) -> list[Row]:
    """Return the rows of a table. Raises ValueError for an incomplete row."""
    return [row_of(raw) for raw in read(f"rows/{system}")["row"]]


def row_of(raw: dict[str, Any]) -> Row:
    """Return one row. Raises ValueError if a field is missing or the class does not fit the fields."""
    names: dict[str, list[str]] = {kind: raw.pop(kind) for kind in KINDS if kind in raw}
    raw = {"id": "", "passage": [], "class": "", "dibs": "", **raw}
    row = Row(names=names, row_class=raw.pop("class"), passages=raw.pop("passage"), **raw)
    if not (row.id and row.names and row.passages and row.dibs):
        raise ValueError(f"a row needs an id, names, a passage and `dibs`: {row}")
    if row.row_class != class_of(row):
        raise ValueError(
            f"{row.id} has the class {row.row_class!r}, and its fields are those of {class_of(row)!r}"
        )
    return row


def class_of(row: Row) -> str:
    """Return the class that the fields of a row belong to; "" without a test, a reason and a plan."""
    if row.later:
        return "later"
    if row.why:
        return "different"
    return "proven" if row.tests or row.others else ""


def names_of(system: str) -> set[tuple[str, str]]:
    """Return the (kind, name) pairs that need a row."""
    return {(kind, name) for kind, names in read(f"names/{system}").items() for name in names}


def passages_of(system: str) -> list[str]:
    """Return the passages of the documents of a system, in their order."""
    return [*read("passages")[system]]


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((LINEAGE / f"{name}.toml").read_text("utf-8"))


# -- checks --------------------------------------------------------------------------------------------------


def errors(system: str) -> Iterator[str]:
    """Yield an error for each name or passage with no row, each name with two rows, and each unknown name."""
    known, seen = names_of(system), set[tuple[str, str]]()
    for row in rows_of(system):
        for name in row.covers:
            if name in seen:
                yield f"{system}: {' '.join(name)} has two rows"
            if name not in known:
                yield f"{system}: {' '.join(name)} is not in names/{system}.toml"
            seen.add(name)
    yield from (f"{system}: {' '.join(name)} has no row" for name in sorted(known - seen))
    yield from passage_errors(system)
    yield from (
        f"{system}: there is no test {test}"
        for row in rows_of(system)
        for test in row.others
        if not exists(test)
    )


def passage_errors(system: str) -> Iterator[str]:
    """Yield an error for each passage without a row, each unknown passage, and each id that two rows have."""
    passages = {*passages_of(system), CODE}
    used = {passage for row in rows_of(system) for passage in row.passages}
    yield from (f"{system}: the passage {passage!r} has no row" for passage in sorted(passages - used))
    yield from (
        f"{system}: the passage {passage!r} is not in passages.toml" for passage in sorted(used - passages)
    )
    ids = Counter(row.id for row in rows_of(system))
    yield from (f"{system}: {id} is the id of {count} rows" for id, count in ids.items() if count > 1)


def exists(test: str) -> bool:
    """Return whether there is a test of the form path::name."""
    path, _, name = test.partition("::")
    return (PROJECT / path).is_file() and name in functions_of(path)


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((PROJECT / path).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def named_tests() -> set[str]:
    """Return the names of all tests of tests/lineage that a row names."""
    return {test for system in SYSTEMS for row in rows_of(system) for test in row.tests}


# -- the page ------------------------------------------------------------------------------------------------


def page() -> str:
    """Return the text of the page."""
    chapters = [f"## {title}\n\n{chapter(system)}" for system, title in SYSTEMS.items()]
    return "\n".join([HEADER, summary(), FOOT_OF_SUMMARY, *chapters])


def summary() -> str:
    """Return the table of the numbers of rows by system and class."""
    counts = {system: Counter(row.row_class for row in rows_of(system)) for system in SYSTEMS}
    lines = [f"- *{name}*: {meaning}" for name, meaning in CLASSES.items()]
    lines += ["", table_row("", *CLASSES, "rows"), "|---|" + "---:|" * (len(CLASSES) + 1)]
    for system, title in SYSTEMS.items():
        lines.append(summary_row(title, counts[system]))
    lines.append(summary_row("all", sum(counts.values(), Counter())))
    return "\n".join(lines)


def summary_row(title: str, counts: Counter[str]) -> str:
    return table_row(title, *(str(counts[name]) for name in CLASSES), str(counts.total()))


def chapter(system: str) -> str:
    """Return the tables of a system, one for each passage. A row is in the table of its first passage."""
    parts = []
    for passage in (*passages_of(system), CODE):
        title = "Only in its code" if passage == CODE else passage
        here = [row for row in rows_of(system) if row.passages[0] == passage]
        elsewhere = [row.id for row in rows_of(system) if passage in row.passages[1:]]
        parts += [f"### {title}\n", *tables(here), *see_also(elsewhere)]
    return "\n".join(parts)


def tables(rows: Sequence[Row]) -> Iterator[str]:
    if rows:
        lines = ["| | feature | in dibs | class | tests, reason or plan |", "|---|---|---|---|---|"]
        lines += [table_row(row.id, cell(row), row.dibs, row.row_class, proof(row)) for row in rows]
        yield "\n".join(lines) + "\n"


def see_also(ids: Sequence[str]) -> Iterator[str]:
    if ids:
        yield f"See also {', '.join(ids)}.\n"


def table_row(*cells: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(row: Row) -> str:
    return "<br>".join(f"*{kind}* {', '.join(names)}" for kind, names in row.names.items())


def proof(row: Row) -> str:
    """Return the reason or the plan of a row, and its tests."""
    tests = [test.removeprefix("test_") for test in row.tests]
    tests += [test.removeprefix("tests/").replace("::test_", "::") for test in row.others]
    return "<br>".join(filter(None, [row.why, row.later, ", ".join(f"`{test}`" for test in tests)]))


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
