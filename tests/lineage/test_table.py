"""The page docs/appendix/lineage.md: each row has a class, and tests or a reason, and its tests exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen

from tests.conftest import ALL_SCHEMES

TESTS: Final = Path(__file__).parent.parent
PAGE: Final = (TESTS.parent / "docs/appendix/lineage.md").read_text("utf-8")
CLASSES: Final = ("proven", "different", "later")
ID: Final = r"[QPBJ]\d+"
ITEM: Final = re.compile(r"::(?P<name>\w+)\[(?P<params>.*)\]$")


@frozen
class Row:
    id: str
    row_class: str
    #: The reason of a difference, or the plan.
    reason: str
    #: Tests as the page names them: those of tests/lineage by name, others as path::name below tests/.
    tests: list[str]


def rows_of(page: str) -> Iterator[Row]:
    for line in re.findall(rf"^\| {ID} \|.*$", page, re.MULTILINE):
        id, _, _, row_class, proof = re.split(r"(?<!\\) \| ", line[2:].removesuffix(" |"))
        *reasons, last = proof.split("<br>")
        if not re.fullmatch(r"`[^`]+`(, `[^`]+`)*", last):
            reasons, last = [*reasons, last], ""
        yield Row(id, row_class, "".join(reasons), re.findall("`([^`]+)`", last))


ROWS: Final = list(rows_of(PAGE))


def errors(page: str, collected: dict[str, set[str]]) -> Iterator[str]:
    """Yield an error for each bad row, each test that does not run, and each lineage test without a row."""
    rows = list(rows_of(page))
    for id, count in Counter(row.id for row in rows).items():
        if count > 1:
            yield f"{id} is the id of {count} rows"
    for row in rows:
        if row.row_class not in CLASSES or (row.row_class == "proven") != (not row.reason):
            yield f"{row.id} is {row.row_class}, and its reason is {row.reason!r}"
        if row.row_class == "proven" and not row.tests:
            yield f"{row.id} is proven without a test"
        yield from (f"{row.id}: no test {test}" for test in row.tests if not runs(test, collected))
    unknown = set(re.findall(ID, " ".join(re.findall("^See also .*$", page, re.MULTILINE))))
    yield from (f"See also {id}, which has no row" for id in sorted(unknown - {row.id for row in rows}))
    named = {test for row in rows for test in row.tests}
    yield from (f"{name} has no row" for name in collected if name.removeprefix("test_") not in named)


def runs(test: str, collected: dict[str, set[str]]) -> bool:
    """Return whether a lineage test is collected on all storages, or another test is in its file."""
    path, separator, name = test.rpartition("::")
    if not separator:
        return set(ALL_SCHEMES) <= collected.get(f"test_{name}", set())
    file = TESTS / path
    return file.is_file() and f"test_{name}" in {
        node.name
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.fixture(scope="module")
def collected() -> dict[str, set[str]]:
    """The storages on which each test of this folder is collected, by test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    pytest_run = subprocess.run(
        [*command, str(Path(__file__).parent), f"--ignore={__file__}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, set[str]] = {}
    for item in filter(None, map(ITEM.search, pytest_run.stdout.splitlines())):
        found.setdefault(item["name"], set()).add(item["params"].partition("-")[0])
    return found


def test_each_row_is_proven_or_has_a_reason_and_its_tests_run(collected: dict[str, set[str]]) -> None:
    assert [] == list(errors(PAGE, collected))


BREACHES = {
    "| Q8 | a | b | proven | `gone` |": "Q8: no test gone",
    "| Q8 | a | b | proven | `on_memory` |": "Q8: no test on_memory",
    "| Q8 | a | b | proven | `test_house.py::gone` |": "Q8: no test test_house.py::gone",
    "| Q8 | a | b | proven | `test_gone.py::gone` |": "Q8: no test test_gone.py::gone",
    "| Q8 | a | b | proven |  |": "Q8 is proven without a test",
    "| Q8 | a | b | different | `known` |": "Q8 is different, and its reason is ''",
    "| Q8 | a | b | proven | faster<br>`known` |": "Q8 is proven, and its reason is 'faster'",
    "| Q8 | a | b | planned | faster |": "Q8 is planned, and its reason is 'faster'",
    "| Q9 | a | b | proven | `known` |": "Q9 is the id of 2 rows",
    "See also Q8.": "See also Q8, which has no row",
}


@pytest.mark.parametrize("line", BREACHES)
def test_a_bad_row_is_found(line: str) -> None:
    row = "| Q9 | a \\| c | b | different | faster<br>`known` |"
    found = {"test_known": set(ALL_SCHEMES), "test_on_memory": {"memory"}}

    assert BREACHES[line] in set(errors(f"{row}\n{line}", found))
    assert ["test_on_memory has no row"] == list(errors(row, found))


def test_the_page_counts_its_rows_by_class() -> None:
    """The numbers at the top are those of the rows below them."""
    printed = re.findall(r"^\| ([^|]+) \|((?: \d+ \|)+)$", PAGE, re.MULTILINE)

    assert ["queasy", "Programma", "beequeue and bee-queue", "@platformatic/job-queue", "all"] == [
        title for title, _ in printed
    ]
    for (_, counts), letters in zip(printed, ("Q", "P", "B", "J", "QPBJ"), strict=True):
        classes = [row.row_class for row in ROWS if row.id[0] in letters]
        assert [*map(classes.count, CLASSES), len(classes)] == [int(n) for n in re.findall(r"\d+", counts)]
