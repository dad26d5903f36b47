"""The Django project under its development server, ASGI servers and gunicorn: views of each kind enqueue."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dibs_conformance.servers import PostgresServer
from tests.frameworks.django_project import FOLDER, Served, Site, new_site

RUNSERVER = ("manage.py", "runserver", "--noreload", "127.0.0.1:{port}")
UVICORN = ("-m", "uvicorn", "--port", "{port}", "--log-level", "warning", "project.asgi:application")
DAPHNE = ("-m", "daphne", "-p", "{port}", "project.asgi:application")
GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--workers", "2", "project.wsgi:application")
VIEWS = ("order", "order_async", "order_nested", "order_nested_async")
JOINED = (*VIEWS, "order_joined")


def order_many(served: Served, views: tuple[str, ...], requests: int) -> None:
    """Send concurrent requests to all views, and read the state of each order by both kinds of view."""

    def order(number: int) -> tuple[str, str]:
        pk = served.get(views[number % len(views)])["id"]
        return served.get(f"state/{pk}")["state"], served.get(f"state_async/{pk}")["state"]

    with ThreadPoolExecutor(8) as threads:
        states = Counter(threads.map(order, range(requests)))

    assert {("waiting", "waiting"): requests} == states


def check_leaks(served: Served, site: Site) -> None:
    """Assert that only the background loop has sessions, and that no thread is left of a request."""
    deadline = time.monotonic() + 20
    # The end of a request is behind its reply: the server closes the event loop after it.
    while (sessions := site.sessions()) > 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    threads = served.get("process")["threads"]

    assert sessions <= 10
    assert threads.count("dibs-sync") <= 1
    assert len(threads) < 30, threads


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({}, RUNSERVER, id="runserver", marks=pytest.mark.chaos),
        pytest.param({"CONN_MAX_AGE": 60}, GUNICORN, id="gunicorn", marks=pytest.mark.chaos),
        pytest.param({"OPTIONS": {"pool": True}}, (*GUNICORN, "--threads", "4", "--preload"), id="gthread"),
        pytest.param({"CONN_MAX_AGE": None}, UVICORN, id="uvicorn"),
        pytest.param({}, DAPHNE, id="daphne", marks=pytest.mark.chaos),
    ],
)
def test_each_kind_of_view_enqueues(
    postgres_server: PostgresServer, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    with new_site(postgres_server, **settings) as site:
        site.create_tables()
        with site.serve(*words) as served:
            order_many(served, JOINED, 60)

            assert 500 == served.status("order_joined?fail=1")
            assert {"state": None} == served.get("state/999999")
            check_leaks(served, site)
        assert 0 == site.sessions(), served.output
        assert "dibs.errors" not in served.output[0]


def test_a_view_that_fails_in_its_own_transaction_leaves_neither_order_nor_job(
    postgres_server: PostgresServer,
) -> None:
    # Django refuses async views with ATOMIC_REQUESTS.
    with new_site(postgres_server, ATOMIC_REQUESTS=True) as site:
        site.create_tables()
        with site.serve(*RUNSERVER) as served:
            stored = [served.get(view)["id"] for view in ("order", "order_joined") * 3]
            failed = [served.status("order_joined?fail=1") for _ in range(3)]
            states = [served.get(f"state/{pk}")["state"] for pk in range(1, 10)]

        assert [500] * 3 == failed
        assert [1, 2, 3, 4, 5, 6] == stored
        assert ["waiting"] * 6 + [None] * 3 == states


@pytest.mark.parametrize(
    "words", [RUNSERVER, pytest.param(UVICORN, marks=pytest.mark.chaos)], ids=["runserver", "uvicorn"]
)
def test_jobs_may_be_in_files(
    postgres_server: PostgresServer, words: tuple[str, ...], tmp_path: Path
) -> None:
    with new_site(postgres_server) as site:
        site.create_tables()
        with site.serve(*words, SHOP_JOBS=f"file:{tmp_path}/jobs") as served:
            order_many(served, VIEWS, 40)
            check_leaks(served, site)
        assert "dibs.errors" not in served.output[0]


def test_a_reloaded_server_works_and_leaves_no_sessions(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "django_project"))
    with new_site(postgres_server, folder) as site:
        site.create_tables()
        with site.serve("manage.py", "runserver", "127.0.0.1:{port}") as served:
            first = served.pid()
            order_many(served, JOINED, 40)
            (folder / "shop" / "views.py").touch()
            while served.pid() in (None, first):
                time.sleep(0.05)
            order_many(served, JOINED, 40)
            check_leaks(served, site)
        assert 0 == site.sessions()


@pytest.mark.chaos
@pytest.mark.parametrize("words", [RUNSERVER, UVICORN, DAPHNE], ids=["runserver", "uvicorn", "daphne"])
def test_thousands_of_requests_leak_nothing(postgres_server: PostgresServer, words: tuple[str, ...]) -> None:
    with new_site(postgres_server) as site:
        site.create_tables()
        with site.serve(*words) as served:
            for _ in range(5):
                order_many(served, JOINED, 400)
                check_leaks(served, site)
