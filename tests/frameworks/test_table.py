"""The table of docs/reference/frameworks.md equals the rows of the tests, and each row names a test."""

from __future__ import annotations

import pytest

from tests.frameworks.rows import OTHERS, SERVERS, Row, print_table
from tests.source import PROJECT

PAGE = PROJECT / "docs" / "reference" / "frameworks.md"


def test_the_page_has_the_table_of_the_rows() -> None:
    table = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]

    assert print_table().splitlines() == table, f"put this table into {PAGE}:\n{print_table()}"


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_a_row_without_a_server_names_a_test_that_exists(row: Row) -> None:
    file, _, function = row.test.partition("[")[0].partition("::")
    source = (PROJECT / "tests" / "frameworks" / file).read_text("utf-8")

    assert f"def {function}(" in source if function else source


def test_a_verdict_other_than_works_has_a_note() -> None:
    rows = (*SERVERS, *OTHERS)

    assert {"works", "needs a note", "broken"} == {row.verdict for row in rows}
    assert [] == [row.name for row in rows if (row.verdict == "works") != (row.note == "")]
