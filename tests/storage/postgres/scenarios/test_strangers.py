"""Roles that may only connect to the database: what they hold, send and create changes nothing of dibs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dibs import Dibs
from dibs.errors import StorageError, StorageUnavailable
from dibs.storage.postgres import PostgresStorage, open_url
from dibs.storage.postgres.queries import migrations
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked, claimed, done

Opening = Callable[..., PostgresStorage]


@contextmanager
def role(server: PostgresServer, name: str, rights: str = "") -> Iterator[str]:
    """Create a role that may connect to the database, and run `rights` about it. Yield its URL."""
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; {rights}".encode())
        try:
            yield f"postgresql://{name}:x@{server.url.rpartition('@')[2]}"
        finally:
            admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


@pytest.fixture
async def stranger(
    postgres_server: PostgresServer, schema: str
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A session of a role that may only connect."""
    with role(postgres_server, f"stranger_{schema}") as url:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            yield connection


async def test_locks_of_a_stranger_delay_no_writer_and_no_reader(
    storage: PostgresStorage, stranger: psycopg.AsyncConnection[Any]
) -> None:
    """A stranger holds each advisory lock that a writer may announce itself with in the next seconds."""
    await storage.enqueue("q", [asked("a")])
    (job,) = await claimed(storage)
    assert job.run is not None
    log_class = storage._server.queries.fill_in("{log_class}")
    await stranger.execute(
        f"SELECT pg_advisory_lock({log_class}, ((n >> 10)::bit(32))::integer) "
        f"FROM generate_series({job.run.fence}::bigint - 1000000, {job.run.fence} + 3000000, 1024) n"
    )
    # A reader may read no entry above this number, if the lock counts.
    await stranger.execute(f"SELECT pg_advisory_lock_shared({log_class}, 1)")
    async with asyncio.timeout(60):
        await storage.settle("q", [done(job)])

    assert ["completed"] == [event.kind for _, event in (await storage.events("q")).events]


async def test_no_function_waits_for_an_advisory_lock(
    storage: PostgresStorage, connect: Callable[[], Any], schema: str
) -> None:
    """Each role that may connect can hold one."""
    found = await (await connect()).execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace "
        "AND prosrc ~ '\\ypg_advisory_(xact_)?lock'",
        [schema],
    )

    assert [] == await found.fetchall()


async def test_the_lock_of_the_numbers_ends_before_the_transaction(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    one, other = await connect(), await connect()
    far = 8_000_000_000_000_000
    await one.execute("SELECT raise_numbers(%s), change_lead()", [far])
    async with asyncio.timeout(60):
        await other.execute("SELECT raise_numbers(%s)", [far + 5])
    await one.rollback()
    found = await other.execute("SELECT last_value FROM numbers")

    assert (far + 5,) == await found.fetchone()


#: Payloads that dibs never sends.
JUNK = (
    "", " ", "x", "w 1", "1", "1 ", "1 i", "1 p", "1 zzz", "-1 w", "1 i x", "1 i {}", "1 i [1]", "1 i [",
    "1 wei [[]]", "9" * 5000 + " w", "1e3 w", "99999 w", "echo", "echo x", '1 i ["a\\ud800"]',
    "1 i " + "[" * 2000, "\x01\x7f é 😀",
)  # fmt: skip


async def test_notifications_of_a_stranger_end_no_listener_and_make_no_outcome(
    postgres_server: PostgresServer,
    stranger: psycopg.AsyncConnection[Any],
    schema: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Dibs(f"{postgres_server.url}?schema={schema}&poll=600") as app:
        queue = app.queue("q")
        ticket = await queue.enqueue(1, id="a")
        result = asyncio.create_task(ticket.result())
        storage = app.storage
        assert isinstance(storage, PostgresStorage)
        await storage.wait(["q"], for_="ids", ids=["a"], timeout=0.01)
        listening, known = storage._waits.listener._task, storage._waits.notifications
        assert listening is not None
        token, channel = known.token("ids", "q"), storage._server.queries.channel
        for payload in (*JUNK, '1 p ["a"]', '1 wei ["a"]'):
            await stranger.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        async with asyncio.timeout(60):
            while known.token("ids", "q") == token and not listening.done():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        assert not listening.done()
        (job,) = await claimed(storage)
        assert not result.done()
        await storage.settle("q", [done(job, b"7")])
        async with asyncio.timeout(60):
            assert 7 == await result

    assert "no wake-ups" not in caplog.text


async def opened(url: str, schema: str, **options: Any) -> None:
    async with open_url(url, schema=schema, **options) as storage:
        await storage.enqueue("q", [asked("a")])


async def opened_by_four(url: str, schema: str) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(open_and_close(url, schema))


async def open_and_close(url: str, schema: str) -> None:
    async with open_url(url, schema=schema):
        pass


@pytest.fixture
def place(postgres_server: PostgresServer, schema: str) -> Iterator[tuple[str, str, str]]:
    """Two roles that may create schemas, beside the superuser: their URLs, and the name of the second."""
    rights = "GRANT CREATE ON DATABASE postgres TO {}"
    one, other = f"one_{schema}", f"other_{schema}"
    with (
        role(postgres_server, one, rights.format(one)) as first,
        role(postgres_server, other, rights.format(other)) as second,
    ):
        yield first, second, other


#: What a role must not have in the schema of another one, by the words of the error.
FOREIGN = {
    "owns the schema": "ALTER SCHEMA {s} OWNER TO {r}",
    "may create functions in the schema": "GRANT CREATE ON SCHEMA {s} TO {r}",
    "every role may create functions": "GRANT CREATE ON SCHEMA {s} TO PUBLIC",
    "owns a function in the schema": "ALTER FUNCTION {s}.tick(bigint) OWNER TO {r}",
    "owns a table in the schema": "ALTER TABLE {s}.migrations OWNER TO {r}",
}


@pytest.mark.parametrize("words", FOREIGN)
async def test_code_of_another_role_is_not_run(
    postgres_server: PostgresServer, place: tuple[str, str, str], schema: str, words: str
) -> None:
    mine, _, other = place
    await opened(mine, schema)
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(FOREIGN[words].format(s=schema, r=other).encode())
        for url, why in ((mine, words), (postgres_server.url, "owns the schema")):
            with pytest.raises(StorageUnavailable, match=f"{why}.*allow_others=1"):
                await opened(url, schema)
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO one_{schema}".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO one_{schema}".encode())
        await opened(mine, schema, allow_others=True)
        await opened(f"{mine}?allow_others=1", schema)


async def test_a_role_that_may_not_migrate_names_the_command_that_does(
    postgres_server: PostgresServer, place: tuple[str, str, str], schema: str
) -> None:
    owner, user, other = place
    owners = f"{owner}?schema={schema}"
    await asyncio.to_thread(run_migrate, owners)
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {other}".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {other}".encode())
        admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {other}".encode())
        admin.execute(f"UPDATE {schema}.migrations SET functions = 'of another version'".encode())
    with pytest.raises(
        StorageError, match="run `dibs migrate` with the role that owns it: permission denied"
    ):
        await opened(user, schema, allow_others=True)
    await asyncio.to_thread(run_migrate, owners)

    await opened(user, schema, allow_others=True)


def run_migrate(url: str) -> None:
    subprocess.run([sys.executable, "-m", "dibs", "migrate", "--url", url], check=True, capture_output=True)


@pytest.mark.parametrize(
    "grant", ["GRANT {owner} TO {user}", "GRANT {user} TO {owner}", "ALTER ROLE {owner} SUPERUSER"]
)
async def test_a_role_uses_the_schema_of_one_that_it_trusts(
    postgres_server: PostgresServer, place: tuple[str, str, str], schema: str, grant: str
) -> None:
    """A member of the owner, a role that the owner may act as, or any role if a superuser is the owner."""
    mine, theirs, other = place
    await opened(mine, schema)
    with psycopg.connect(postgres_server.url, autocommit=True) as admin:
        admin.execute(grant.format(owner=f"one_{schema}", user=other).encode())
        admin.execute(
            f"GRANT USAGE ON SCHEMA {schema} TO {other}; "
            f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {other}; "
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {other}".encode()
        )

    await opened(theirs, schema)


async def test_a_role_may_own_its_schema_without_a_right_on_the_database(
    postgres_server: PostgresServer, schema: str
) -> None:
    """`CREATE SCHEMA IF NOT EXISTS` would need the right to create one."""
    with role(postgres_server, f"app_{schema}", f"CREATE SCHEMA {schema} AUTHORIZATION app_{schema}") as url:
        await opened_by_four(url, schema)


async def test_the_time_limits_of_a_role_do_not_end_a_migration(
    postgres_server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement of the migration, and the wait for another process that migrates, may take longer."""
    first, *others = migrations()
    slow = (first._replace(text=f"{first.text}; SELECT pg_sleep(2)"), *others)
    monkeypatch.setattr("dibs.storage.postgres.migrate.migrations", lambda: slow)
    name = f"hasty_{schema}"
    limits = "; ".join(
        f"ALTER ROLE {name} SET {limit} = '1s'"
        for limit in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    )
    with role(postgres_server, name, f"GRANT CREATE ON DATABASE postgres TO {name}; {limits}") as url:
        await opened_by_four(url, schema)


async def test_a_role_without_a_free_connection_is_told_so(
    postgres_server: PostgresServer, schema: str
) -> None:
    name = f"single_{schema}"
    with role(postgres_server, name, f"ALTER ROLE {name} CONNECTION LIMIT 1") as url:
        async with await psycopg.AsyncConnection.connect(url):
            with pytest.raises(StorageUnavailable, match=r"accepts no more connections.*max_connections"):
                await opened(url, schema)
