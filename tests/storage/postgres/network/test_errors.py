"""Errors of the driver become errors of dibs, which name the server and never a password."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from dibs.errors import (
    ConfigurationError,
    NotRunning,
    OutcomeUnknown,
    Refused,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
)
from dibs.storage.postgres import PostgresStorage, open_url
from dibs.storage.postgres.network import errors as gate
from dibs.storage.postgres.network.errors import DriverErrors
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked

Opening = Callable[..., PostgresStorage]
#: Sessions that wait for a lock.
LOCKED_OUT = "wait_event_type = 'Lock'"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def test_an_unreachable_server_is_named_with_host_and_port() -> None:
    port = free_port()
    with pytest.raises(StorageUnavailable) as caught:
        await open_url(f"postgresql://ann:s3cret@127.0.0.1:{port}/db").__aenter__()

    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_wrong_password_is_told_without_it(postgres_server: PostgresServer) -> None:
    url = postgres_server.url.replace(postgres_server.password, "wr0ng")
    with pytest.raises(StorageUnavailable, match="refuses the user or the password") as caught:
        await open_url(url).__aenter__()

    assert "wr0ng" not in str(caught.value)


async def test_a_database_that_is_not_there_is_told(postgres_server: PostgresServer) -> None:
    with pytest.raises(StorageUnavailable, match=r"nowhere.*Create the database, or correct the URL") as told:
        await open_url(postgres_server.url.replace("/postgres", "/nowhere")).__aenter__()
    assert "running" not in str(told.value)


@pytest.mark.parametrize(
    ("column", "value", "kind", "words"),
    [
        (0, 120_011, StorageUnavailable, "Postgres 13 or newer"),
        (2, "LATIN1", ConfigurationError, "UTF8"),
        (6, "repeatable read", ConfigurationError, "read committed"),
    ],
)
async def test_a_server_that_will_not_do_is_refused(
    opening: Opening, column: int, value: object, kind: type[Exception], words: str
) -> None:
    row: list[object] = [180_004, "18.4", "UTF8", 1, "on", "on", "read committed", False]
    row[column] = value

    with pytest.raises(kind, match=words):
        await opening()._server._check_server(Answering(row), None)  # type: ignore[arg-type]


class Answering:
    """A connection that answers each statement with the same row."""

    def __init__(self, row: list[object]) -> None:
        self.row = row

    async def execute(self, *_: object) -> Answering:
        return self

    async def fetchone(self) -> list[object]:
        return self.row


async def test_a_server_that_may_lose_commits_says_so(opening: Opening) -> None:
    storage = opening()
    storage._server._report_durability("off", "on", standby=False)

    assert "synchronous_commit is off" in storage.durability
    assert "weak" in storage.durability


async def test_a_missing_right_is_told(
    opening: Opening, schema: str, postgres_server: PostgresServer, connect: Callable[[], Any]
) -> None:
    connection = await connect()
    await connection.execute(f"CREATE ROLE {schema}_guest LOGIN PASSWORD 'guest'")
    await connection.commit()
    async with opening():
        pass
    url = f"postgresql://{schema}_guest:guest@127.0.0.1:{postgres_server.port}/postgres"

    with pytest.raises(StorageError, match="lacks a privilege"):
        await open_url(url, schema=schema).__aenter__()


async def test_a_read_only_server_is_told(
    opening: Opening, postgres_server: PostgresServer, schema: str
) -> None:
    async with opening():
        pass
    url = postgres_server.url + "?options=-c%20default_transaction_read_only%3Don"
    async with open_url(url, schema=schema) as storage:
        with pytest.raises(StorageReadOnly, match="nothing was changed"):
            await storage.enqueue("q", [asked("a")])


async def test_a_connection_killed_while_idle_goes_unnoticed(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    await storage.enqueue("q", [asked("a")])
    await kill_all_others(await connect())

    assert "queued" == (await storage.enqueue("q", [asked("b")]))[0].status


async def test_a_connection_lost_after_sending_is_an_unknown_outcome(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    """The server stops while the statement waits for a lock that the test holds."""
    await storage.enqueue("q", [asked("a")])
    mine, killer = await connect(), await connect()
    await mine.execute("SELECT * FROM live FOR UPDATE")
    waiting = asyncio.create_task(storage.enqueue("q", [asked("a")]))
    await blocked(killer)
    await kill(killer, LOCKED_OUT)

    with pytest.raises(OutcomeUnknown, match="connection was lost"):
        await waiting
    await mine.rollback()
    assert "updated" == (await storage.enqueue("q", [asked("a")]))[0].status


async def test_a_read_whose_connection_is_lost_is_made_again(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    """A read may be repeated, and a wait for a result reads again and again."""
    mine, killer, reading = await read_behind_a_lock(storage, connect)
    await blocked(killer)
    await kill(killer, LOCKED_OUT)
    await mine.rollback()

    [slot] = await reading
    assert slot.current is not None


async def test_a_read_whose_connection_is_lost_twice_is_told(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    _, killer, reading = await read_behind_a_lock(storage, connect)
    for _ in range(2):
        await blocked(killer)
        await kill(killer, LOCKED_OUT)

    with pytest.raises(StorageUnavailable, match="connection was lost"):
        await reading


async def read_behind_a_lock(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> tuple[Any, Any, asyncio.Task[Any]]:
    """Start a read that waits for a lock.

    Return the connection that holds the lock, a connection for `kill`, and the read.
    """
    await storage.enqueue("q", [asked("a")])
    mine, killer = await connect(), await connect()
    await mine.execute("LOCK TABLE live")
    return mine, killer, asyncio.create_task(storage.get("q", ["a"]))


async def blocked(connection: Any) -> None:
    """Wait until a session waits for a lock."""
    for _ in range(500):
        found = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )
        if (await found.fetchone())[0]:
            return
        await connection.rollback()
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")


async def kill_all_others(connection: Any) -> None:
    """End every other session of the server, and return when they are gone.

    pg_terminate_backend only sends a signal. The outcome of a statement that a test sent before the session
    handled the signal would be unknown.
    """
    await kill(connection, "pid <> pg_backend_pid() AND backend_type = 'client backend'")


async def kill(connection: Any, which: str) -> None:
    """End the sessions that a condition on pg_stat_activity selects, and return when they are gone."""
    ended = await connection.execute(
        f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which}"
    )
    pids = [pid for pid, _ in await ended.fetchall()]
    await connection.rollback()
    for _ in range(3_000):
        left = await connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", [pids])
        if await left.fetchone() is None:
            return
        # A transaction sees the same pg_stat_activity until its end.
        await connection.rollback()
        await asyncio.sleep(0.01)
    raise AssertionError(f"sessions {pids} do not end")


async def test_conflicts_are_tried_again_and_then_given_up() -> None:
    tries = 0

    async def collide() -> None:
        nonlocal tries
        tries += 1
        raise psycopg.errors.DeadlockDetected("others")

    with pytest.raises(psycopg.errors.DeadlockDetected):
        await gate.retry_conflicts(collide)

    assert gate.MAX_TRIES == tries


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.DiskFull("no space"), "StorageFull"),
        (psycopg.errors.SerializationFailure("x"), "StorageError"),
        (psycopg.errors.UndefinedTable("x"), "StorageTooNew"),
        (psycopg.errors.NumericValueOutOfRange("x"), "Refused"),
        (psycopg.errors.AdminShutdown("x"), "OutcomeUnknown"),
    ],
)
def test_each_class_of_error_has_its_own(error: psycopg.Error, kind: str) -> None:
    assert (
        kind
        == type(DriverErrors("place", "host:1").to_storage_error(error, writes=True, alive=True)).__name__
    )


async def test_what_was_closed_is_not_running(opening: Opening) -> None:
    storage = opening()
    with pytest.raises(NotRunning):
        await storage.get("q", ["a"])
    async with storage:
        pass
    with pytest.raises(NotRunning):
        await storage.enqueue("q", [asked("a")])


async def test_now_is_refused_by_the_server_s_clock(storage: PostgresStorage) -> None:
    with pytest.raises(Refused, match="manual"):
        await storage.enqueue("q", [asked("a")], now=1)
