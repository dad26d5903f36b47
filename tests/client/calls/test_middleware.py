"""Middleware around enqueues and runs, and an app that uses another storage for a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dibs import CurrentJob, Dibs, JobFailed, NotRunning, Refused, Retention, UnknownOption
from dibs.model.requests import EnqueueRequest
from tests.client import handlers


def marked(request: EnqueueRequest, name: str) -> EnqueueRequest:
    data = replace(request.job.data, attributes={**request.job.data.attributes, name: b"1"})
    return replace(request, job=replace(request.job, data=data))


class Diary:
    """Middleware that records the calls that it wraps."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def enqueue(
        self, name: str
    ) -> Callable[[str, Sequence[EnqueueRequest]], AbstractAsyncContextManager[Sequence[EnqueueRequest]]]:
        @asynccontextmanager
        async def around(
            queue: str, requests: Sequence[EnqueueRequest]
        ) -> AsyncIterator[Sequence[EnqueueRequest]]:
            self.lines.append(f"{name} {queue} {len(requests)}")
            yield [marked(request, name) for request in requests]
            self.lines.append(f"{name} sent")

        return around

    def run(self, name: str) -> Callable[[CurrentJob], AbstractContextManager[object]]:
        @contextmanager
        def around(job: CurrentJob) -> Iterator[None]:
            self.lines.append(f"{name} {job.id}")
            try:
                yield
            finally:
                self.lines.append(f"{name} over")

        return around


@pytest.fixture
def diary() -> Diary:
    return Diary()


async def test_the_latest_stands_outermost_and_what_it_yields_is_sent(app: Dibs, diary: Diary) -> None:
    app.middleware(enqueue=diary.enqueue("a"))
    app.middleware(enqueue=diary.enqueue("b"))
    ticket = await app.queue("q").enqueue(1, id="x")

    assert ["b q 1", "a q 1", "a sent", "b sent"] == diary.lines
    assert {"a": 1, "b": 1} == (await ticket.status()).attributes


async def test_a_batch_is_surrounded_once(app: Dibs, diary: Diary) -> None:
    app.middleware(enqueue=diary.enqueue("a"))
    await app.queue("q").enqueue_many([1, 2, 3])

    assert ["a q 3", "a sent"] == diary.lines


async def test_runs_are_surrounded_whenever_their_handler_was_declared(app: Dibs, diary: Diary) -> None:
    first = app.task(queue="first")(handlers.refresh)
    app.middleware(run=diary.run("a"))
    app.middleware(run=diary.run("b"))
    second = app.task(queue="second")(handlers.thumbnail)
    await first.options(id="x").enqueue()
    await app.work(until="empty")
    await second.options(id="y").enqueue("path")
    await app.work(until="empty")

    assert ["b x", "a x", "a over", "b over", "b y", "a y", "a over", "b over"] == diary.lines


async def test_what_stands_around_a_run_may_fail_it(app: Dibs) -> None:
    def around(_: CurrentJob) -> AbstractContextManager[object]:
        raise PermissionError("not on a Sunday")

    app.middleware(run=around)
    ticket = await app.task(queue="q", max_retries=0)(handlers.refresh).enqueue()
    await app.work(until="empty")

    with pytest.raises(JobFailed, match="not on a Sunday"):
        await ticket.result()


async def test_what_is_refused_passes_through(app: Dibs, diary: Diary) -> None:
    app.middleware(enqueue=diary.enqueue("a"))

    with pytest.raises(Refused):
        await app.queue("q").enqueue(1, priority=5000)
    assert ["a q 1"] == diary.lines


async def test_an_app_lives_elsewhere_for_a_block(storage_url: str) -> None:
    app = Dibs("file:./never-made")
    async with app.using(storage_url) as same:
        await app.queue("q").enqueue(1)
        inside = (app.url, (await same.queue("q").counts()).waiting)

    assert (storage_url, 1) == inside
    assert f"file:{Path.cwd()}/never-made" == app.url
    with pytest.raises(NotRunning):
        _ = app.storage


async def test_options_are_the_storages_own() -> None:
    options: dict[str, Any] = {"colour": "red"}

    with pytest.raises(UnknownOption, match="colour"):
        async with Dibs("memory:").using("memory:", **options):
            pass


async def test_what_surrounds_it_goes_along_and_stays_when_it_is_back(diary: Diary) -> None:
    app = Dibs("memory:")
    app.middleware(enqueue=diary.enqueue("a"))
    async with app.using("memory:"):
        app.middleware(enqueue=diary.enqueue("b"))
        await app.queue("q").enqueue(1)
    inside, diary.lines = diary.lines, []
    async with app:
        await app.queue("q").enqueue(1)

    assert ["b q 1", "a q 1"] == inside[:2]
    assert ["a q 1", "a sent"] == diary.lines


async def test_a_queues_retention_is_not_that_of_another_place() -> None:
    app = Dibs("memory:")
    found: list[Any] = []
    for kept in (10, 7200):
        async with app.using("memory:"):
            task = app.get_task("q") if found else app.task(queue="q")(handlers.refresh)
            await task.queue.configure(retention=Retention(completed=kept, failed=kept, cancelled=kept))
            ticket = await task.options(wait=30, delay=3600).enqueue()
            client = ticket._client
            found.append((await client.retention()).completed)

    assert [10_000, 7_200_000] == found
