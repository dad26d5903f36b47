"""The storage handle opens at first use, in one process, on one event loop, and again after a close."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from dibs import Dibs, NoStorage, NotRunning, StorageUnavailable, UnknownScheme
from dibs.client.connection.open_storage import MAX_RESUMED, close_all_apps, has_open_apps
from dibs.storage import registry


async def use(app: Dibs) -> int:
    await app.queue("q").enqueue(1)
    return (await app.queue("q").counts()).waiting


def test_an_app_may_be_created_before_its_url_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
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


async def test_concurrent_first_uses_open_the_storage_once(
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


async def test_callers_that_waited_for_the_opening_resume_in_portions() -> None:
    handle = Dibs("memory:")._storage_handle
    resumed, per_iteration = 0, list[int]()

    async def call() -> None:
        nonlocal resumed
        await handle.ensure_open()
        resumed += 1

    calls = [asyncio.ensure_future(call()) for _ in range(10 * MAX_RESUMED)]
    while not all(one.done() for one in calls):
        before = resumed
        await asyncio.sleep(0)
        per_iteration.append(resumed - before)

    assert resumed == len(calls)
    assert max(per_iteration) <= MAX_RESUMED + 1, "those in line and the one that began to open"
    await handle.close()


async def test_a_failed_opening_fails_all_callers_that_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def fail(url: str, **_: Any) -> Any:
        opened.append(url)
        raise StorageUnavailable("the server is down")

    monkeypatch.setattr("dibs.client.connection.storage_handle.open_storage", fail)
    app = Dibs("memory:")
    errors = await asyncio.gather(*(use(app) for _ in range(3 * MAX_RESUMED)), return_exceptions=True)

    assert opened == ["memory:"]
    assert len(set(map(id, errors))) == 3 * MAX_RESUMED, "each caller has an exception object of its own"
    assert {type(error) for error in errors} == {StorageUnavailable}


async def test_the_next_use_retries_a_failed_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Dibs()
    monkeypatch.setenv("DIBS_URL", "nowhere:")
    with pytest.raises(UnknownScheme):
        await use(app)
    monkeypatch.setenv("DIBS_URL", "memory:")

    assert await use(app) == 1


async def test_after_close_every_use_raises_until_the_app_is_entered_again(storage_url: str) -> None:
    app = Dibs(storage_url)
    async with app:
        ticket = await app.queue("q").enqueue(1)
    for late in (use(app), ticket.result(1), ticket.status(), app.queue("q").pause()):
        with pytest.raises(NotRunning, match="async with app"):
            await late

    async with app:
        assert (await ticket.status()).state == "waiting", (
            "a memory storage keeps its jobs over a close of its app"
        )


async def test_blocks_nest(storage_url: str) -> None:
    app = Dibs(storage_url)
    async with app:
        async with app:
            pass
        assert await use(app) == 1
    with pytest.raises(NotRunning):
        await use(app)


async def test_close_finishes_the_calls_in_flight(storage_url: str) -> None:
    app = Dibs(storage_url)
    await app.open()
    call = asyncio.create_task(app.queue("q").enqueue(1))
    await asyncio.sleep(0)
    await app.close()

    assert (await call).verdict == "queued"


def test_a_new_loop_finds_the_same_jobs(storage_url: str) -> None:
    app = Dibs(storage_url)

    assert [asyncio.run(use(app)), asyncio.run(use(app))] == [1, 2]


async def test_two_running_loops_share_the_jobs(any_url: str) -> None:
    async with Dibs(any_url) as app:
        assert await use(app) == 1
        assert await asyncio.to_thread(asyncio.run, use(app)) == 2
        assert 2 == (await asyncio.to_thread(app.queue("q").sync.counts)).waiting
        assert await use(app) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork does not exist on this platform")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_cannot_use_a_memory_storage() -> None:
    app = Dibs("memory:")
    asyncio.run(use(app))

    def use_in_child() -> str:
        try:
            asyncio.run(use(app))
        except StorageUnavailable as error:
            return str(error)
        return "no error"

    assert "a fork cannot reach it" in in_child(use_in_child)


def in_child(function: Any) -> str:
    """Return the text that `function` returns in a forked child process, or the error that it raises."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        # A child that raised would go on as a second pytest, and its parent would wait for ever.
        try:
            os.write(write_end, function().encode())
        except BaseException as error:  # noqa: BLE001 - the child ends below, whatever it raised
            os.write(write_end, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as pipe:
        return pipe.read()


async def test_work_runs_the_worker_and_closes_the_storage_that_it_opened(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dibs import app as module

    app = Dibs(storage_url)
    monkeypatch.setattr(module, "WORKER_FUNCTION", f"{__name__}:pretend_to_work")

    report: Any = await app.work(["q"], until="empty", lease=20.0)
    options = {"processes": 0, "until": "empty", "grace": 30.0, "lease": 20.0, "heartbeat": None, "poll": 1.0}
    options |= {
        "max_runs": None,
        "max_memory": None,
        "name": None,
        "handle_signals": True,
        "stop_requests": ANY,
    }
    assert report == (app, ["q"], options, ANY)
    with pytest.raises(NotRunning, match="not open yet"):
        _ = app.storage
    assert await use(app) == 1
    await app.work()
    assert app.storage.url


async def pretend_to_work(app: Dibs, *, queues: Any, **options: Any) -> Any:
    return app, queues, options, app.storage.url


@pytest.mark.parametrize("enqueue_first", [True, False])
async def test_work_leaves_an_app_as_open_as_it_was(storage_url: str, *, enqueue_first: bool) -> None:
    """An app that was open before `work` stays open, and so its tickets stay usable."""
    app = Dibs(storage_url)
    app.queue("q").handler()(handle)
    ticket = await app.queue("q").enqueue(1) if enqueue_first else None
    await app.work(until="empty")

    assert ticket is None or await ticket.result() == 1
    assert (await app.queue("q").counts()).waiting == 0
    await app.close()


async def handle(data: int) -> int:
    return data


def test_no_repr_of_an_apps_internals_shows_the_password() -> None:
    """Tools that report frame locals print the reprs of `self` in each frame."""
    app = Dibs("redis://user:hunter2@localhost/0", poll=1.0)
    client = app.queue("q")._client

    assert "hunter2" not in f"{app!r} {app.queue('q')!r} {client!r} {client.storage_handle!r}"


# -- The close of the storages of all apps, after which each app can be used again -------------------


async def test_apps_open_again_on_each_loop(tmp_path: Path) -> None:
    apps = [Dibs(f"file:{tmp_path}/{name}") for name in "ab"]
    for app in apps:
        await app.queue("mail").enqueue(1)
        await asyncio.to_thread(app.sync.queue("mail").enqueue, 2)
    handles = [app._storage_handle for app in apps]
    before = [handle.is_open for handle in handles]
    await close_all_apps()
    after = [handle.is_open for handle in handles]
    counts = [(await app.queue("mail").counts()).waiting for app in apps]
    blocking = [await asyncio.to_thread(app.sync.queue("mail").counts) for app in apps]

    assert ([True, True], [False, False]) == (before, after)
    assert [2, 2] == counts == [each.waiting for each in blocking]
    await close_all_apps()
    assert not has_open_apps()


async def test_a_closed_app_stays_closed_and_an_entered_one_can_be_left(tmp_path: Path) -> None:
    async with Dibs(f"file:{tmp_path}/jobs") as app:
        await app.queue("mail").enqueue(1)
        await close_all_apps()

        assert 1 == (await app.queue("mail").counts()).waiting
    assert not app._storage_handle.is_open
