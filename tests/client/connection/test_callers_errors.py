"""Wrappers that people write around transactions catch the errors that dibs raises with `connection=`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.errors import SerializationFailure
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from dibs import Dibs, Queue, Refused
from dibs_conformance.servers import PostgresServer
from tests.suites import require

_NUMBERS = count()


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return f"{postgres_server.url}?schema=callers_errors_{next(_NUMBERS)}"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    """A queue with a job of the id "a", which waits."""
    async with Dibs(url) as app:
        queue = app.queue("q")
        await queue.enqueue(0, id="a")
        yield queue


def address(server: PostgresServer) -> str:
    return server.url.replace("postgresql:", "postgresql+psycopg:")


def retried(work: Callable[[], Any], *, tries: int = 3) -> Any:
    """Repeat `work` after a conflict, as in the documentation of SQLAlchemy and CockroachDB."""
    for left in reversed(range(tries)):
        try:
            return work()
        except DBAPIError as error:
            if not left or getattr(error.orig, "sqlstate", None) not in ("40001", "40P01"):
                raise
    return None


def test_a_retry_around_a_session_of_sqlalchemy_succeeds(url: str, postgres_server: PostgresServer) -> None:
    app = Dibs(url).sync
    queue, calls = app.queue("q"), 0
    queue.enqueue(0, id="a")
    engine = create_engine(address(postgres_server), poolclass=NullPool, isolation_level="SERIALIZABLE")

    def work() -> None:
        nonlocal calls
        calls += 1
        with Session(engine) as session, session.begin():
            session.execute(text("SELECT count(*) FROM pg_class"))
            if calls == 1:
                queue.enqueue(1, id="a")
            queue.enqueue(2, id="a", connection=session.connection())

    with app:
        retried(work)
        job = queue.get("a")
    assert job is not None
    assert (2, 2) == (calls, job.data)


async def test_an_async_session_of_sqlalchemy_raises_its_own_error(
    queue: Queue, postgres_server: PostgresServer
) -> None:
    engine = create_async_engine(
        address(postgres_server), poolclass=NullPool, isolation_level="REPEATABLE READ"
    )
    async with AsyncSession(engine) as session:
        await session.execute(text("SELECT count(*) FROM pg_class"))
        await queue.enqueue(1, id="a")
        connection = await session.connection()
        with pytest.raises(OperationalError) as caught:
            await queue.enqueue(2, id="a", connection=connection)
        await session.rollback()
        await queue.enqueue(3, id="a", connection=await session.connection())
        await session.commit()

    assert isinstance(caught.value.orig, SerializationFailure)
    assert caught.value.__cause__ is caught.value.orig
    assert not caught.value.connection_invalidated
    assert any("repeat the whole transaction" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_lost_connection_of_sqlalchemy_is_invalidated(
    url: str, queue: Queue, postgres_server: PostgresServer, kind: str
) -> None:
    """`with engine.begin()` then ends with this error, and the next transaction gets another connection."""
    lost = (
        await asyncio.to_thread(lose_in_sqlalchemy, url, postgres_server)
        if kind == "sync"
        else await lose_in_async_sqlalchemy(queue, postgres_server)
    )

    assert lost.connection_invalidated
    assert isinstance(lost.orig, psycopg.OperationalError)
    assert "nothing of it is stored" in str(lost)
    assert {"a", "c"} == {job.id async for job in queue.list("waiting")}


def end_session(server: PostgresServer, pid: Any) -> None:
    with psycopg.connect(server.url) as killer:
        killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def lose_in_sqlalchemy(url: str, server: PostgresServer) -> OperationalError:
    engine = create_engine(address(server))

    def lose(queue: Any) -> None:
        with engine.begin() as connection:
            queue.enqueue(1, id="b", connection=connection)
            end_session(server, connection.scalar(text("SELECT pg_backend_pid()")))
            queue.enqueue(1, id="b", connection=connection)

    with Dibs(url).sync as app:
        with pytest.raises(OperationalError) as caught:
            lose(app.queue("q"))
        with engine.begin() as connection:
            app.queue("q").enqueue(1, id="c", connection=connection)
    engine.dispose()
    return caught.value


async def lose_in_async_sqlalchemy(queue: Queue, server: PostgresServer) -> OperationalError:
    engine = create_async_engine(address(server))

    async def lose() -> None:
        async with engine.begin() as connection:
            await queue.enqueue(1, id="b", connection=connection)
            end_session(server, await connection.scalar(text("SELECT pg_backend_pid()")))
            await queue.enqueue(1, id="b", connection=connection)

    with pytest.raises(OperationalError) as caught:
        await lose()
    async with engine.begin() as connection:
        await queue.enqueue(1, id="c", connection=connection)
    await engine.dispose()
    return caught.value


async def test_errors_that_concern_dibs_stay_its_own(queue: Queue, postgres_server: PostgresServer) -> None:
    engine = create_async_engine(address(postgres_server), poolclass=NullPool)
    async with engine.connect() as connection:
        with pytest.raises(Refused, match="priority"):
            await queue.enqueue(1, priority=5000, connection=connection)
        await connection.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(Exception, match="your transaction is read-only") as caught:
            await queue.enqueue(1, connection=connection)

    assert not isinstance(caught.value, sqlalchemy.exc.SQLAlchemyError)


async def test_a_lost_transaction_has_no_note_about_jobs_that_were_enqueued(
    queue: Queue, postgres_server: PostgresServer
) -> None:
    """The rollback undoes the first batches of `enqueue_many`, too."""
    mine = await psycopg.AsyncConnection.connect(postgres_server.url)
    await mine.execute("SELECT 1")
    await mine.close()
    with pytest.raises(psycopg.OperationalError) as caught:
        await queue.enqueue_many([1, 2], connection=mine)

    assert [] == getattr(caught.value, "__notes__", [])


DJANGO = """
import sys
import django
from django.conf import settings

url, user, password, port = sys.argv[1:]
database = dict(ENGINE="django.db.backends.postgresql", NAME="postgres", USER=user, PASSWORD=password,
                HOST="127.0.0.1", PORT=port)
settings.configure(DATABASES={"default": database})
django.setup()

import psycopg
from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from dibs import Dibs

queue = Dibs(url).sync.queue("q")
queue.enqueue(0, id="a")
calls = 0

def work():
    global calls
    calls += 1
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            cursor.execute("SELECT count(*) FROM pg_class")
        if calls == 1:
            queue.enqueue(1, id="a")
        queue.enqueue(2, id="a", connection=connection)

for _ in range(3):
    try:
        work()
        break
    except OperationalError as error:
        assert isinstance(error.__cause__, psycopg.errors.SerializationFailure), error.__cause__
print(calls, queue.get("a").data)

with transaction.atomic():
    transaction.set_rollback(True)
    try:
        queue.enqueue(3, id="b", connection=connection)
    except TransactionManagementError:
        print("broken block")

try:
    with transaction.atomic():
        queue.enqueue(4, id="c", connection=connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()[0]
        with psycopg.connect(url.partition("?")[0]) as killer:
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        queue.enqueue(4, id="d", connection=connection)
except OperationalError as error:
    print("nothing of it is stored" in str(error))
connection.close_if_unusable_or_obsolete()
with transaction.atomic():
    queue.enqueue(5, id="e", connection=connection)
print(sorted(job.id for job in queue.list("waiting")))
"""


def test_a_retry_around_atomic_of_django_succeeds(
    url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    require("django")
    script = tmp_path / "retry.py"
    script.write_text(DJANGO)
    server = postgres_server
    told = subprocess.run(
        [sys.executable, str(script), url, server.user, server.password, str(server.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ["2 2", "broken block", "True", "['a', 'e']"] == told.stdout.splitlines(), told.stderr
