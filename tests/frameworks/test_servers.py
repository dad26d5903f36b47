"""Web applications under their real servers: requests wait for results, and SIGTERM ends the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs import Dibs
from tests.frameworks.apps.jobs import double
from tests.frameworks.rows import OTHERS, SERVERS, Row, print_table
from tests.frameworks.served import serve
from tests.source import PROJECT

SCHEMES = ("file", "redis", "postgresql")


def marks(scheme: str, row: Row) -> list[pytest.MarkDecorator]:
    """Return the mark of the cases that only `nox -s chaos` runs."""
    return [] if scheme in row.by_default else [pytest.mark.chaos]


CASES = [
    pytest.param(scheme, row, id=f"{scheme}-{row.name}", marks=marks(scheme, row))
    for scheme in SCHEMES
    for row in SERVERS
]


@pytest.mark.parametrize(("worked_url", "row"), CASES, indirect=["worked_url"])
def test_requests_wait_for_results_and_the_server_ends_cleanly(
    row: Row, worked_url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        served = stack.enter_context(serve(row.words, worked_url, tmp_path))

        def ask(number: int) -> str:
            return served.get(f"{row.paths[number % len(row.paths)]}{number}")

        with ThreadPoolExecutor(10) as threads:
            answers = list(threads.map(ask, range(30)))
        served.stop()

    assert [str(2 * number) for number in range(30)] == answers
    assert served.exit_code in row.exits, served.log.read_text("utf-8")
    assert [] == served.errors, served.log.read_text("utf-8")
    with Dibs(worked_url).sync as app:
        counts = app.queue(double.queue.name).counts()
    assert (0, 0) == (counts.waiting, counts.active)


# -- The table of docs/reference/frameworks.md equals the rows of the tests, and each row names a test --


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
