"""Django's test runner and pytest-django: jobs are in the test database, which is dropped at the end."""

from __future__ import annotations

from typing import Any

import pytest

from dibs_conformance.servers import PostgresServer
from tests.frameworks.django_project import Site, new_site

MANAGE = ("manage.py", "test", "--noinput", "-v", "2")
CASES = "shop/pytest_cases.py"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", "-c", "pytest.ini", CASES)
#: A test that may not use the database. It runs alone, so that no earlier test has opened the app.
BLOCKED = "test_without_a_database_no_job_is_enqueued"


def check_run(site: Site, *words: str, left: tuple[str, ...] = ()) -> str:
    """Run tests of the project, which pass and leave neither sessions nor databases but `left`."""
    done = site.run(*words)
    output = done.stdout + done.stderr

    assert 0 == done.returncode, output
    for word in ("ResourceWarning", "Exception ignored", "being accessed", "dibs.errors"):
        assert word not in output, output
    assert [site.database, *left] == site.databases(), output
    assert 0 == site.sessions()
    assert ["public"] == site.schemas()
    return output


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({}, (), id="plain"),
        pytest.param({}, ("--parallel", "2"), id="parallel", marks=pytest.mark.chaos),
        pytest.param({"CONN_MAX_AGE": 600}, (), id="persistent", marks=pytest.mark.chaos),
        pytest.param({"OPTIONS": {"pool": True}}, (), id="pool", marks=pytest.mark.chaos),
    ],
)
def test_the_test_databases_are_dropped(
    postgres_server: PostgresServer, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    with new_site(postgres_server, **settings) as site:
        check_run(site, *MANAGE, *words)


@pytest.mark.chaos
def test_a_kept_database_is_used_again(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server) as site:
        for _ in range(2):
            check_run(site, *MANAGE, "--keepdb", left=(f"test_{site.database}",))


@pytest.mark.parametrize(
    "words", [(), pytest.param(("-n", "2"), marks=pytest.mark.chaos)], ids=["one process", "xdist"]
)
def test_pytest_drops_the_test_database(postgres_server: PostgresServer, words: tuple[str, ...]) -> None:
    with new_site(postgres_server) as site:
        check_run(site, *PYTEST, "--deselect", f"{CASES}::{BLOCKED}", *words)


def test_pytest_refuses_an_enqueue_without_a_test_database(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server) as site:
        check_run(site, *PYTEST, "-k", BLOCKED)
