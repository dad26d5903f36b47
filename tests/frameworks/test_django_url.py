"""The URL django: where Django's settings do not fit, and the connections of handlers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from dibs_conformance.servers import PostgresServer
from tests.frameworks.django_project import new_site

OPEN = "import sys; from dibs import Dibs; Dibs(sys.argv[1]).sync.queues()"


def test_an_unknown_alias_is_refused(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server) as site:
        done = site.run("-c", OPEN, "django:other")

        assert "ConfigurationError: django:other names no database of settings.DATABASES" in done.stderr
        assert done.stderr.rstrip().endswith("known: default")


def test_options_follow_the_alias(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server, OPTIONS={"connect_timeout": 5}) as site:
        done = site.run("-c", OPEN, "django:default?schema=jobs")

        assert (0, ["jobs", "public"]) == (done.returncode, site.schemas()), done.stderr


def test_a_database_other_than_postgres_is_refused(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server) as site:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        done = site.run("-c", OPEN, "django:", SHOP_DATABASE=json.dumps(database))

        assert "ConfigurationError: django:default is a database of sqlite, and" in done.stderr


def test_a_process_without_settings_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, "django:default"], capture_output=True, text=True, check=False
    )

    assert "ConfigurationError: a django: URL reads settings.DATABASES, and Django has no" in done.stderr
    assert "set DJANGO_SETTINGS_MODULE, or call django.setup() first" in done.stderr


def test_settings_that_cannot_be_imported_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, "django:default"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "nowhere.settings"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (
        "ConfigurationError: a django: URL reads settings.DATABASES, and Django cannot import" in done.stderr
    )
    assert "No module named 'nowhere'; run this in the directory of manage.py" in done.stderr


def test_a_process_without_django_is_refused() -> None:
    program = f"import sys; sys.modules['django'] = None; {OPEN}"
    done = subprocess.run(
        [sys.executable, "-c", program, "django:default"], capture_output=True, text=True, check=False
    )

    assert "ConfigurationError: a django: URL needs Django; install it" in done.stderr


#: Runs a job that ends the sessions of Django, and a second job after it, which may get the same thread.
LOST = """
import sys, django, psycopg
django.setup()
from project.jobs import app
from shop.models import Order
from django.db import connection

SESSIONS = "FROM pg_stat_activity WHERE datname = %s AND application_name = ''"

@app.task(queue="read", max_retries=0)
def read():
    list(Order.objects.all())

@app.task(queue="lose", max_retries=0)
def lose_sessions():
    list(Order.objects.all())
    with psycopg.connect(sys.argv[1], autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) " + SESSIONS, [connection.settings_dict["NAME"]])
    try:
        list(Order.objects.all())
    finally:
        read.sync.enqueue()

lose_sessions.sync.enqueue()
report = app.sync.work(["lose", "read"], until="empty", handle_signals=False)
print(report.total("failed"), report.total("completed"))
"""


@pytest.mark.parametrize("age", [None, pytest.param(60, marks=pytest.mark.chaos)])
def test_a_lost_session_fails_only_the_run_that_used_it(
    postgres_server: PostgresServer, age: int | None
) -> None:
    with new_site(postgres_server, CONN_MAX_AGE=age) as site:
        site.create_tables()
        done = site.run("-c", LOST, postgres_server.url)

        assert "1 1" == done.stdout.strip(), done.stderr
