"""The examination of a Postgres, each fault on a real server, and a server without faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from dibs.model.findings import Finding
from dibs.storage.postgres import diagnosis, open_url
from dibs.storage.postgres.queries import migrations
from dibs_conformance.servers import PostgresServer, start_postgres


@pytest.fixture(scope="module")
def own_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A Postgres for this module; without a server, the fixture `postgres_server` skips the tests."""
    with start_postgres(fsync="on", max_connections="20") as server:
        yield server


@pytest.fixture
def server(own_server: PostgresServer) -> Iterator[PostgresServer]:
    yield own_server
    execute(own_server, "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def execute(server: PostgresServer, *statements: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


async def diagnose(server: PostgresServer, schema: str = "dibs") -> list[Finding]:
    async with open_url(server.url, schema=schema):
        pass
    return await open_url(server.url, schema=schema).diagnose()


async def test_a_healthy_postgres_has_no_findings(server: PostgresServer) -> None:
    assert [] == await diagnose(server)


@pytest.mark.parametrize(
    ("setting", "code", "severity"),
    [
        ("synchronous_commit", "postgres-synchronous-commit", "warning"),
        ("full_page_writes", "postgres-fsync", "error"),
        ("autovacuum", "postgres-autovacuum", "warning"),
    ],
)
async def test_settings_that_endanger_jobs_are_found(
    server: PostgresServer, setting: str, code: str, severity: str
) -> None:
    # The session that reloads waits until it has the new value, so new sessions have it, too.
    execute(server, f"ALTER SYSTEM SET {setting} = off", "SELECT pg_reload_conf()", "SELECT pg_sleep(0.2)")
    (found,) = await diagnose(server)

    assert (code, severity) == (found.code, found.severity)
    assert f"{setting} is off" in found.found


async def test_a_server_without_fsync_is_found(postgres_server: PostgresServer) -> None:
    assert ["postgres-fsync"] == [found.code for found in await diagnose(postgres_server, "doctor")]


async def test_too_many_connections_are_found(server: PostgresServer) -> None:
    with ExitStack() as stack:
        for _ in range(13):
            stack.enter_context(psycopg.connect(server.url))
        findings = await open_url(server.url, schema="dibs").diagnose()

    found = {finding.code: finding.found for finding in findings}
    assert "14 of 17 connections are open" == found["postgres-connections"]


async def test_a_session_that_is_idle_in_a_transaction_is_found(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "OLD_TRANSACTION", 0)
    with psycopg.connect(server.url) as connection:
        connection.execute("SELECT 1")

        assert ["postgres-idle-transaction"] == [found.code for found in await diagnose(server)]


async def test_a_schema_without_tables_is_found_and_not_created(server: PostgresServer) -> None:
    found = [await open_url(server.url, schema="mistyped").diagnose() for _ in range(2)]

    assert [["postgres-no-schema"]] * 2 == [[each.code for each in one] for one in found]


async def test_the_schema_of_another_role_is_found_and_not_read(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE ann; CREATE SCHEMA hers AUTHORIZATION ann")
        try:
            refused, allowed = [
                await open_url(server.url, schema="hers", allow_others=allow).diagnose()
                for allow in (False, True)
            ]
        finally:
            connection.execute("DROP OWNED BY ann; DROP ROLE ann")

    assert ["the role 'ann' owns the schema 'hers'"] == [
        found.found for found in refused if found.code == "postgres-owner"
    ]
    assert "postgres-no-schema" in {found.code for found in allowed}


@pytest.mark.parametrize(("known", "code"), [(2, "layout-older"), (0, "layout-newer")])
async def test_another_layout_is_found_and_left(
    server: PostgresServer, known: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = code.replace("-", "_")
    async with open_url(server.url, schema=schema):
        pass
    (only,) = migrations()
    monkeypatch.setattr(diagnosis, "migrations", lambda: (only._replace(number=known),))
    found = [await open_url(server.url, schema=schema).diagnose() for _ in range(2)]

    assert [[(code, True)]] * 2 == [[(each.code, each.blocks) for each in one] for one in found]
