"""Every call ends at its deadline under a paused server, and says truly whether it was written."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from dibs import Dibs, OutcomeUnknown, Queue, Refused, StorageBusy, WaitTimeout
from dibs.client.connection import outcome_wait
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.storage_urls import new_url

Pause = Callable[[], AbstractContextManager[None]]
SCHEMES = ("file", "redis", "postgresql")
#: A program that locks the file of its argument, and holds the lock until the program is killed.
HOLDER = "import sys, time; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire(); \
print('held', flush=True); time.sleep(600)"


@pytest.fixture(params=SCHEMES)
async def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a storage that exists, because a migration may take longer than `call_timeout`."""
    url = new_url(request.param, request)
    async with Dibs(url):
        return url


@pytest.fixture
async def app(url: str) -> AsyncIterator[Dibs]:
    async with Dibs(url, call_timeout="500ms") as app:
        yield app


@pytest.fixture
def pause(url: str, request: pytest.FixtureRequest) -> Pause:
    """Stops the server of the storage, or for files another process that holds the lock, during a block."""
    match urlsplit(url).scheme:
        case "redis":
            redis: RedisServer = request.getfixturevalue("redis_server")
            return lambda: stopped([redis.pid])
        case "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres_server")
            return lambda: stopped(postgres_processes(postgres))
        case _:
            return lambda: held_lock(Path(url.removeprefix("file:")) / "lock")


def postgres_processes(server: PostgresServer) -> list[int]:
    """Return the process ids: the postmaster first, because it starts the others, then all others."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
    return [server.pid, *(pid for (pid,) in rows)]


@contextmanager
def stopped(processes: Sequence[int]) -> Iterator[None]:
    try:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        yield
    finally:
        holder.kill()
        holder.communicate()


async def outcome(call: Coroutine[Any, Any, Any]) -> Any:
    """Return the answer of a call, or the error with which the call ended at its deadline."""
    try:
        return await call
    except (StorageBusy, OutcomeUnknown) as error:
        return error


async def waiting_ids(queue: Queue) -> list[str]:
    return sorted([status.id async for status in queue.list("waiting")])


async def test_enqueues_end_and_say_truly_whether_they_were_written(queue: Queue, pause: Pause) -> None:
    await queue.enqueue(0, id="before")
    with pause():
        async with asyncio.timeout(20):
            first = asyncio.create_task(outcome(queue.enqueue(1, id="first")))
            await asyncio.sleep(0.05)
            later = [asyncio.create_task(outcome(queue.enqueue(1, id=f"later{n}"))) for n in range(20)]
            many = asyncio.create_task(outcome(queue.enqueue_many([queue.bind(1, id="many")])))
            told = {"first": await first, "many": await many}
            told |= {f"later{n}": await call for n, call in enumerate(later)}
    async with asyncio.timeout(20):
        await queue.enqueue(2, id="after")
    ids = await waiting_ids(queue)

    assert {StorageBusy, OutcomeUnknown} >= {type(error) for error in told.values()}
    assert not [id for id, error in told.items() if isinstance(error, StorageBusy) and id in ids]
    assert {"before", "after"} <= set(ids)
    assert len(ids) == len(set(ids))


async def test_each_other_call_ends(app: Dibs, queue: Queue, pause: Pause) -> None:
    tickets = await queue.enqueue_many([queue.bind(n, id=f"a{n}") for n in range(5)])
    async with queue.receive(max_jobs=1, lease=600) as claims:
        claim = await anext(claims)
        with pause():
            writes = [
                claim.complete(),
                claim.progress(1),
                queue.cancel("a1"),
                queue.amend("a2", priority=3),
                queue.forget("a3"),
                queue.configure(log_age=1000),
                queue.finish("a4", 1),
                queue.retry_failed("a4"),
                tickets[4].cancel(),
            ]
            reads = [queue.get("a4"), queue.counts(), anext(queue.list("waiting")), tickets[4].status()]
            async with asyncio.timeout(20):
                told = await asyncio.gather(*(outcome(call) for call in (*writes, *reads)))
        async with asyncio.timeout(20):
            assert await queue.get("a4") is not None

    of_writes, of_reads = told[: len(writes)], told[len(writes) :]
    assert {StorageBusy, OutcomeUnknown} >= {type(error) for error in of_writes}
    # Files are read without the lock.
    assert not [error for error in of_reads if isinstance(error, OutcomeUnknown)]


async def test_a_wait_ends_in_its_own_time(
    queue: Queue, pause: Pause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_wait, "READ_SECONDS", 0.1)
    ticket = await queue.enqueue(1)
    with pause():
        async with asyncio.timeout(20):
            with pytest.raises(WaitTimeout):
                await ticket.result(0.1)

    waiting = asyncio.create_task(ticket.result(30))
    await asyncio.sleep(0.05)
    with pause():
        await asyncio.sleep(1)  # longer than the deadline of a call
    async with queue.receive() as claims:
        await (await anext(claims)).complete("done")
        assert await waiting == "done"


@pytest.mark.parametrize("url", ["redis", "postgresql"], indirect=True)
async def test_a_server_that_accepts_and_never_answers_cannot_be_opened(url: str, pause: Pause) -> None:
    app = Dibs(url, call_timeout=0.5)
    with pause():
        async with asyncio.timeout(20):
            with pytest.raises(StorageBusy, match="opening the storage"):
                await app.queue("q").enqueue(1)
    await app.queue("q").enqueue(1, id="a")

    assert await waiting_ids(app.queue("q")) == ["a"]
    await app.close()


RAN: list[int] = []
#: The event that the first run sets.
RUNNING: list[asyncio.Event] = []


async def note(number: int) -> None:
    RAN.append(number)
    RUNNING[0].set()
    await asyncio.sleep(0.01)


async def test_a_worker_goes_on_after_a_pause(app: Dibs, pause: Pause) -> None:
    RAN.clear()
    RUNNING[:] = [asyncio.Event()]
    task = app.task(note)
    await task.enqueue_many([task.bind(number) for number in range(200)])
    working = asyncio.create_task(app.work(until="empty", handle_signals=False))
    await RUNNING[0].wait()
    with pause():
        await asyncio.sleep(1)  # longer than the deadline of a client's call
    async with asyncio.timeout(30):
        await working

    assert sorted(RAN) == list(range(200))


async def test_feeds_and_receivers_go_on_after_a_pause(queue: Queue, pause: Pause) -> None:
    async with asyncio.timeout(30), queue.receive() as claims, queue.events() as events:
        first = asyncio.ensure_future(anext(claims))
        ended = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        with pause():
            await asyncio.sleep(1)  # longer than the deadline of a client's call
        await queue.enqueue(1, id="a")
        claim = await first
        await claim.complete()

        assert (claim.id, (await ended).id) == ("a", "a")


def test_the_deadline_is_a_duration_above_0_or_none() -> None:
    for bad in (0, -1, "soon", float("nan"), True):
        with pytest.raises(Refused, match="call_timeout"):
            Dibs("memory:", call_timeout=bad)
    Dibs("memory:", call_timeout=None)
