"""One app on several event loops and threads: first uses at once, ends of loops, close from elsewhere."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs, NotRunning, OutcomeUnknown, Ticket
from dibs.client.connection import open_storage as open_storage_module
from dibs.storage.file.storage import FileStorage
from dibs_conformance.servers.postgres import PostgresServer
from dibs_conformance.servers.redis import RedisServer
from tests.client.connection.test_storage_handle import in_child


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Call each function on a thread of its own, all at once, and return the results."""
    barrier = threading.Barrier(len(functions))

    def call(function: Callable[[], Any]) -> Any:
        barrier.wait(10)
        return function()

    with ThreadPoolExecutor(len(functions)) as threads:
        return [future.result(60) for future in [threads.submit(call, one) for one in functions]]


async def enqueue_ten(app: Dibs, queue: str = "q") -> None:
    await asyncio.gather(*(app.queue(queue).enqueue(n) for n in range(10)))


@pytest.fixture
def loop_thread() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Return a function that runs a coroutine on an event loop of another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda call: asyncio.run_coroutine_threadsafe(call, loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


# -- first use ---------------------------------------------------------------------------------------


def test_a_loop_and_threads_use_a_new_app_at_once(any_url: str) -> None:
    for repeat in range(8):
        app = Dibs(any_url)
        block = partial(app.sync.queue(f"q{repeat}").enqueue, 1)
        in_threads(*[block] * 8, partial(asyncio.run, enqueue_ten(app, f"q{repeat}")))

        assert 18 == app.sync.queue(f"q{repeat}").counts().waiting
        app.sync.close()


@pytest.mark.parametrize("enters", [True, False])
def test_ten_loops_at_once(any_url: str, *, enters: bool) -> None:
    app = Dibs(any_url)

    async def main() -> None:
        if not enters:
            await enqueue_ten(app)
            return
        async with app:
            await enqueue_ten(app)

    in_threads(*[lambda: asyncio.run(main())] * 10)
    with app.sync:
        assert 100 == app.sync.queue("q").counts().waiting


def test_a_cancelled_first_caller_does_not_fail_the_others(any_url: str) -> None:
    async def main() -> list[Any]:
        app = Dibs(any_url)
        calls = [asyncio.create_task(app.queue("q").enqueue(n)) for n in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        await app.close()
        return results

    first, *others = asyncio.run(main())
    assert isinstance(first, asyncio.CancelledError)
    assert ["queued", "queued"] == [ticket.verdict for ticket in others]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork does not exist on this platform")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_the_first_opening(any_url: str) -> None:
    if any_url.startswith("memory"):
        pytest.skip("there is nothing to share with a fork: test_storage_handle.py covers the error")
    app = Dibs(any_url)

    def enqueue_in_child() -> str:
        app.sync.queue("q").enqueue(2)
        waiting = app.sync.queue("q").counts().waiting
        app.sync.close()
        return str(waiting)

    async def main() -> str:
        opening = asyncio.create_task(app.queue("q").enqueue(1))
        while not any(loops.opening for loops in app._storage_handle._by_process.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        answer = await asyncio.to_thread(in_child, enqueue_in_child)
        await opening
        return answer

    assert asyncio.run(main()) in ("1", "2")
    assert 2 == app.sync.queue("q").counts().waiting
    app.sync.close()


# -- several loops -----------------------------------------------------------------------------------


async def test_a_ticket_of_one_loop_is_awaited_on_another(any_app: Dibs, loop_thread: Any) -> None:
    queue = any_app.queue(f"q-{os.urandom(6).hex()}")
    ticket: Ticket[Any] = await queue.enqueue(1)
    result = asyncio.create_task(asyncio.to_thread(loop_thread, ticket.result(30)))
    async with queue.receive() as claims:
        await (await anext(claims)).complete("done")

    assert "done" == await result


async def test_a_storage_object_serves_several_loops(tmp_path: Path, loop_thread: Any) -> None:
    """The object belongs to the loop that opened it; the others forward their calls."""
    app = Dibs("memory:")
    with app.override_storage(FileStorage(str(tmp_path / "jobs"))):
        ticket = await app.queue("q").enqueue(1)
        await asyncio.to_thread(loop_thread, app.queue("q").enqueue(2))
        await asyncio.to_thread(app.sync.queue("q").enqueue, 3)

        assert 3 == (await app.queue("q").counts()).waiting
        assert "waiting" == (await asyncio.to_thread(loop_thread, ticket.status())).state
        await app.close()
        with pytest.raises(NotRunning, match="closed"):
            await asyncio.to_thread(loop_thread, ticket.status())


async def test_close_closes_the_storages_of_all_loops(any_app: Dibs, loop_thread: Any) -> None:
    queue = any_app.queue(f"q-{os.urandom(6).hex()}")
    ticket = await asyncio.to_thread(loop_thread, queue.enqueue(1))
    waits = asyncio.create_task(asyncio.to_thread(loop_thread, ticket.result(30)))
    await asyncio.to_thread(queue.sync.counts)
    await asyncio.sleep(0.05)
    await any_app.close()

    with pytest.raises(NotRunning):
        await waits
    with pytest.raises(NotRunning):
        await asyncio.to_thread(loop_thread, queue.counts())
    with pytest.raises(NotRunning):
        await asyncio.to_thread(queue.sync.counts)
    await any_app.open()


async def test_close_does_not_wait_for_a_blocked_loop(
    any_app: Dibs, loop_thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_storage_module, "CLOSE_TIMEOUT", 0.1)
    used, released = threading.Event(), threading.Event()

    async def block() -> None:
        await any_app.queue("q").counts()
        used.set()
        released.wait(30)

    blocked = asyncio.create_task(asyncio.to_thread(loop_thread, block()))
    assert await asyncio.to_thread(used.wait, 30)
    await asyncio.wait_for(any_app.close(), 20)
    released.set()
    await blocked
    await any_app.open()


async def test_a_block_on_one_loop_leaves_the_app_open_on_another(any_app: Dibs) -> None:
    async def main() -> None:
        async with any_app:
            await any_app.queue("q").counts()

    await asyncio.to_thread(asyncio.run, main())

    assert any_app.storage.url
    await any_app.queue("q").counts()


def test_a_loop_of_uvloop_beside_one_of_asyncio(any_url: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    app = Dibs(any_url)
    in_threads(lambda: uvloop.run(enqueue_ten(app)), lambda: asyncio.run(enqueue_ten(app)))

    assert 20 == app.sync.queue("q").counts().waiting
    app.sync.close()


def test_loops_nested_by_asgiref(any_url: str) -> None:
    sync = pytest.importorskip("asgiref.sync")
    app = Dibs(any_url)

    def blocking_view() -> None:
        app.sync.queue("q").enqueue(1)
        sync.async_to_sync(enqueue_ten)(app)

    async def main() -> int:
        await enqueue_ten(app)
        await asyncio.gather(*(sync.sync_to_async(blocking_view)() for _ in range(3)))
        return (await app.queue("q").counts()).waiting

    assert 10 + 3 * 11 == asyncio.run(main())
    assert 10 + 3 * 11 == sync.async_to_sync(main)() - 10 - 3 * 11
    app.sync.close()


# -- the end of a loop -------------------------------------------------------------------------------


def test_a_loop_that_ends_without_close_leaves_no_session(postgres_server: PostgresServer) -> None:
    name = f"loops_{os.urandom(4).hex()}"
    url = f"{postgres_server.url}?schema={name}&application_name={name}"
    app = Dibs(url)
    asyncio.run(enqueue_ten(app))

    async def sessions() -> int:
        import psycopg

        async with await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
            cursor = await connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name]
            )
            row = await cursor.fetchone()
            return int(row[0]) if row else -1

    assert 0 == asyncio.run(_settled(sessions))
    assert app._storage_handle._by_process[os.getpid()].opened == {}


def test_a_loop_that_ends_without_close_leaves_no_connection(redis_server: RedisServer) -> None:
    before = len(redis_server.execute("CLIENT", "LIST").splitlines())
    asyncio.run(enqueue_ten(Dibs(f"{redis_server.url}?prefix=loops_{os.urandom(4).hex()}")))

    async def connections() -> int:
        return len(redis_server.execute("CLIENT", "LIST").splitlines()) - before

    assert 0 >= asyncio.run(_settled(connections))


async def _settled(count: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Return the count once it is 0, or after 5 seconds: a server notices a closed socket a little later."""
    for _ in range(100):
        if await count() <= 0:
            break
        await asyncio.sleep(0.05)
    return await count()


def test_no_enqueue_that_was_stored_is_told_cancelled(any_url: str) -> None:
    """asyncio.run cancels the callers at its end, and those of the batch in flight get its answers."""
    app = Dibs(any_url)
    told: dict[str, str] = {}

    async def enqueue(id: str) -> None:
        try:
            await app.queue("q").enqueue(1, id=id)
            told[id] = "queued"
        except asyncio.CancelledError:
            told[id] = "cancelled"
            raise
        except OutcomeUnknown:
            told[id] = "unknown"

    async def end_after(turns: int) -> None:
        await app.queue("q").counts()
        calls = [asyncio.create_task(enqueue(f"{turns}-{n}")) for n in range(50)]
        for _ in range(turns):
            await asyncio.sleep(0)
        assert calls

    for turns in range(12):
        asyncio.run(end_after(turns))
    stored = {one.id for one in app.sync.queue("q").list("waiting")}
    app.sync.close()

    assert set() == {id for id in stored if told[id] == "cancelled"}
    assert set() == {id for id, answer in told.items() if answer == "queued"} - stored
    assert stored


def test_a_task_that_goes_on_after_its_enqueue_ends_with_the_loop(any_url: str) -> None:
    app = Dibs(any_url)
    tasks: list[asyncio.Task[None]] = []

    async def enqueue_for_ever() -> None:
        while True:
            with suppress(OutcomeUnknown):
                await app.queue("q").enqueue(1)

    async def main() -> None:
        await app.queue("q").counts()
        tasks.extend(asyncio.create_task(enqueue_for_ever()) for _ in range(5))
        await asyncio.sleep(0.02)

    asyncio.run(main())

    assert all(task.cancelled() for task in tasks)
    app.sync.close()
