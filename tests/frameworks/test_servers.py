"""Web applications under their real servers: requests wait for results, and SIGTERM ends the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs import Dibs
from tests.frameworks.apps.jobs import double
from tests.frameworks.rows import SERVERS, Row
from tests.frameworks.served import serve

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
