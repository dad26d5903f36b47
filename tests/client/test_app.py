"""The app: its declarations, its URL, its imports, its worker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dibs import BadHandler, ConfigurationError, Dibs, MessagePackSerde, NotRunning, WorkReport
from dibs.worker.work_plan import default_name
from tests.client import handlers


async def pools() -> AsyncIterator[str]:
    yield "a pool"


async def other() -> AsyncIterator[str]:
    yield "another"


async def test_a_lifespan_is_entered_as_a_context_manager(app: Dibs) -> None:
    assert app.lifespan(pools) is pools
    entered = app.lifespan_function
    assert entered is not None

    async with entered() as resources:
        assert resources == "a pool"
    with pytest.raises(BadHandler):
        app.lifespan(other)


def test_a_queue_has_one_serde(app: Dibs) -> None:
    packed = MessagePackSerde()
    app.queue("q", serde=packed)
    app.queue("q")
    app.queue("q", serde=packed)

    with pytest.raises(ConfigurationError, match="messagepack"):
        app.queue("q", serde=MessagePackSerde())


def test_a_tasks_queue_can_be_had_by_name(app: Dibs) -> None:
    task = app.task(queue="q")(handlers.thumbnail)

    assert app.queue("q") is task.queue


@pytest.mark.parametrize("url", ["redis://me:secret@h/0?x=secret", "memory:", None])
def test_an_app_shows_where_it_is_but_no_secret(url: str | None) -> None:
    assert "secret" not in repr(Dibs(url))
    assert repr(Dibs(url)).startswith("<Dibs of ")


def test_a_closed_app_has_no_storage() -> None:
    with pytest.raises(NotRunning):
        _ = Dibs("memory:").storage


async def test_work_returns_a_report(app: Dibs) -> None:
    task = app.task(queue="q")(handlers.refresh)
    await task.enqueue(3)

    report = await app.work(until="empty", lease=10, heartbeat=2, poll=0.1)

    assert isinstance(report, WorkReport)
    assert (report.queue("q").completed, report.queue("q").running, report.total("claimed")) == (1, 0, 1)
    with pytest.raises(ConfigurationError, match="heartbeat"):
        await app.work(lease=1, heartbeat=2)


HEAVY = ["typer", "click", "rich", "watchdog", "filelock", "redis", "psycopg", "cronsim", "zoneinfo",
         "hashlib", "pathlib", "urllib", "tomllib", "multiprocessing", "dibs.worker", "dibs.model.cron",
         "dibs.storage.file", "dibs.storage.memory", "dibs.client.sync.app"]  # fmt: skip


def test_import_dibs_brings_nothing_heavy() -> None:
    """No driver, no command line, no worker, and of the standard library little but asyncio."""
    script = f"import sys, dibs; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there_and_listed() -> None:
    import dibs

    names: Any = dibs.__all__
    assert sorted(names) == names
    assert all(hasattr(dibs, name) for name in names)
    assert (Path(dibs.__file__).parent / "py.typed").exists(), "type checkers read the types of the package"


async def test_the_queues_of_a_storage_are_named(any_url: str) -> None:
    async with Dibs(any_url) as app:
        await app.queue("b").enqueue(1)
        await app.queue("a").configure(max_active=2)

        queues = await app.queues()

        assert sorted(queue.name for queue in queues) == ["a", "b"]
        assert [await queue.get("x") for queue in queues] == [None, None]


async def test_a_worker_has_the_name_that_it_is_given(any_url: str) -> None:
    async with Dibs(any_url) as app:
        queue = app.queue("q")
        queue.handler(handlers.take)
        for id, name in (("a", "pod-7"), ("b", None)):
            await queue.enqueue(1, id=id)
            await app.work(until="empty", name=name)

        named, unnamed = await queue.get("a"), await queue.get("b")
        assert named is not None
        assert unnamed is not None
        assert named.holder == "pod-7"
        assert unnamed.holder.startswith(f"{socket.gethostname()}:{os.getpid()}:")
        assert default_name() != default_name()
