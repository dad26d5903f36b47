"""Where an app's storage is open: in one process, on one event loop, at first use."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any
from unittest.mock import ANY

import pytest

from dibs import Dibs, NoStorage, NotRunning, StorageUnavailable, UnknownScheme
from dibs.storage import registry


async def use(app: Dibs) -> int:
    await app.queue("q").enqueue(1)
    return (await app.queue("q").counts()).waiting


def test_an_app_may_be_made_before_anyone_knows_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIBS_URL", raising=False)
    app = Dibs()

    with pytest.raises(NoStorage):
        asyncio.run(use(app))
    monkeypatch.setenv("DIBS_URL", "memory:")
    assert asyncio.run(use(app)) == 1


async def test_it_opens_at_first_use(storage_url: str) -> None:
    app = Dibs(storage_url)
    with pytest.raises(NotRunning):
        _ = app.storage

    assert await use(app) == 1
    assert app.storage.url in repr(app)
    await app.close()


async def test_however_many_ask_at_once_it_opens_once(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def counted(url: str, **options: Any) -> Any:
        opened.append(url)
        return registry.open_storage(url, **options)

    monkeypatch.setattr("dibs.client.connection.storage_handle.open_storage", counted)
    app = Dibs(storage_url)
    await asyncio.gather(*(use(app) for _ in range(20)))

    assert opened == [storage_url]
    await app.close()


async def test_a_failed_opening_is_tried_again_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Dibs()
    monkeypatch.setenv("DIBS_URL", "nowhere:")
    with pytest.raises(UnknownScheme):
        await use(app)
    monkeypatch.setenv("DIBS_URL", "memory:")

    assert await use(app) == 1


async def test_after_close_every_use_says_so_until_it_is_entered_again(storage_url: str) -> None:
    app = Dibs(storage_url)
    async with app:
        ticket = await app.queue("q").enqueue(1)
    for late in (use(app), ticket.result(1), ticket.status(), app.queue("q").pause()):
        with pytest.raises(NotRunning, match="async with app"):
            await late

    async with app:
        assert (await ticket.status()).state == "waiting", "what memory holds outlives a close of its app"


async def test_blocks_nest(storage_url: str) -> None:
    app = Dibs(storage_url)
    async with app:
        async with app:
            pass
        assert await use(app) == 1
    with pytest.raises(NotRunning):
        await use(app)


async def test_close_answers_what_is_under_way(storage_url: str) -> None:
    app = Dibs(storage_url)
    await app.open()
    call = asyncio.create_task(app.queue("q").enqueue(1))
    await asyncio.sleep(0)
    await app.close()

    assert (await call).verdict == "queued"


def test_a_new_loop_finds_the_same_jobs(storage_url: str) -> None:
    app = Dibs(storage_url)

    assert [asyncio.run(use(app)), asyncio.run(use(app))] == [1, 2]


async def test_another_running_loop_is_told_whose_it_is(storage_url: str) -> None:
    async with Dibs(storage_url) as app:
        with pytest.raises(NotRunning, match="another event loop"):
            await asyncio.to_thread(asyncio.run, use(app))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_of_memory_says_that_it_cannot_reach_it() -> None:
    app = Dibs("memory:")
    asyncio.run(use(app))

    def look() -> str:
        try:
            asyncio.run(use(app))
        except StorageUnavailable as error:
            return str(error)
        return "it went on"

    assert "a fork cannot reach it" in in_child(look)


def in_child(look: Any) -> str:
    """Return what a function says in a forked child."""
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(theirs, look().encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(mine) as told:
        return told.read()


async def test_work_asks_the_worker_and_closes_what_it_opened(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs.client import app as module

    app = Dibs(storage_url)
    monkeypatch.setattr(module, "WORK", f"{__name__}:pretend_to_work")

    assert await app.work(["q"], until="empty") == (app, ["q"], 0, "empty", 30.0, ANY)
    with pytest.raises(NotRunning, match="not open yet"):
        _ = app.storage
    assert await use(app) == 1
    await app.work()
    assert app.storage.url


async def pretend_to_work(app: Dibs, *, queues: Any, processes: int, until: str, grace: float) -> Any:
    return app, queues, processes, until, grace, app.storage.url


def test_a_thread_without_a_loop_is_not_another_loop(storage_url: str) -> None:
    app = Dibs(storage_url)
    thread = threading.Thread(target=lambda: asyncio.run(use(app)))
    thread.start()
    thread.join()

    assert asyncio.run(use(app)) == 2


@pytest.mark.parametrize("enqueue_first", [True, False])
async def test_work_leaves_an_app_as_open_as_it_was(storage_url: str, *, enqueue_first: bool) -> None:
    """Opened at first use it stays usable, and its tickets with it."""
    app = Dibs(storage_url)
    app.queue("q").handler()(handle)
    ticket = await app.queue("q").enqueue(1) if enqueue_first else None
    await app.work(until="empty")

    assert ticket is None or await ticket.result() == 1
    assert (await app.queue("q").counts()).waiting == 0
    await app.close()


async def handle(data: int) -> int:
    return data
