"""Roles that may call some of the functions for SQL, and text that looks like code."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
from msgspec.json import decode
from psycopg import errors
from psycopg.types.json import Jsonb

from dibs import Queue
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.sql_programs import SqlProgram


@pytest.fixture
async def limited(sql: SqlProgram, postgres_server: PostgresServer) -> AsyncIterator[SqlProgram]:
    """A program with a role that may only call enqueue_job(), and with an empty search path."""
    role = f"limited_{sql.schema}"
    await sql.rows(f"CREATE ROLE {role} LOGIN PASSWORD 'limited'")
    await sql.rows(f"GRANT USAGE ON SCHEMA {{s}} TO {role}")
    await sql.rows(f"GRANT EXECUTE ON FUNCTION {{s}}.enqueue_job TO {role}")
    host = postgres_server.url.rpartition("@")[2]
    url = f"postgresql://{role}:limited@{host}"
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True, options="-c search_path=")
    async with connection:
        yield SqlProgram(connection, sql.schema)
    await sql.rows(f"DROP OWNED BY {role}")
    await sql.rows(f"DROP ROLE {role}")


async def test_a_role_may_enqueue_without_a_privilege_on_a_table(limited: SqlProgram, queue: Queue) -> None:
    await limited.rows("BEGIN")
    await limited.call("enqueue_job", queue="q", id="a", payload=Jsonb(1), request_key="k")
    await limited.rows("COMMIT")

    assert 1 == (await queue.counts()).waiting
    for text in (
        "SELECT * FROM {s}.live",
        "SELECT * FROM {s}.jobs",
        "SELECT * FROM {s}.claim_jobs('q')",
        "SELECT {s}.cancel('q', '{a}', true, NULL)",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            await limited.rows(text)


async def test_a_role_may_read_the_views(sql: SqlProgram, limited: SqlProgram, queue: Queue) -> None:
    await sql.rows(f"GRANT SELECT ON {{s}}.jobs, {{s}}.outcomes TO limited_{sql.schema}")
    await sql.rows("SELECT {s}.configure('q', '{\"fail_handler\": true}', NULL)")
    await queue.enqueue({"n": 1}, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    await sql.value("fail_job", queue="q", id="a", fence=job["fence"], error="no")

    assert "a" == (await limited.row("SELECT * FROM {s}.jobs"))["origin"]["id"]
    assert {"n": 1} == (await limited.row("SELECT * FROM {s}.outcomes"))["payload"]


async def test_no_temporary_object_of_a_role_replaces_one_of_the_schema(
    sql: SqlProgram, limited: SqlProgram, queue: Queue
) -> None:
    await limited.rows("CREATE TEMP TABLE live (LIKE pg_catalog.pg_class)")
    await limited.rows("CREATE TEMP TABLE queues (name text)")
    await limited.call("enqueue_job", queue="q", id="a")

    assert 1 == (await queue.counts()).waiting


async def test_no_text_of_a_caller_is_ever_code(sql: SqlProgram, queue: Queue) -> None:
    text = "'; DROP TABLE live; -- %s $1 {a} \\"
    await sql.call("enqueue_job", queue=text, id=text, payload=Jsonb(text), request_key=text)
    (job,) = await sql.calls("claim_jobs", queue=text, holder=text)
    await sql.value("fail_job", queue=text, id=text, fence=job["fence"], error=text, error_type=text)

    outcome = await sql.row("SELECT queue, id, holder, error_type, error_message FROM {s}.outcomes")
    assert {text} == set(outcome.values())
    assert text == decode((await sql.row("SELECT payload_bytes FROM {s}.outcomes"))["payload_bytes"])
