"""Calls under trio, and under anyio with its trio backend, raise one error, whose message has the remedy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

from dibs import ConfigurationError, Dibs, Receiver, Ticket
from tests.frameworks.apps.tasks import double

#: The name of the task.
DOUBLE = "tests.frameworks.apps.tasks.double"
Call = Callable[[Dibs], Awaitable[object]]


async def enter(app: Dibs) -> None:
    async with app:
        pass


async def list_jobs(app: Dibs) -> None:
    async for _ in app.queue("q").list("waiting"):
        pass


async def follow(app: Dibs) -> None:
    async with app.queue("q").events():
        pass


async def receive(app: Dibs) -> None:
    claims: Receiver
    async with app.queue("q").receive() as claims:
        await anext(claims)


def rebuilt_ticket(app: Dibs) -> Ticket[object]:
    return app.queue("q").ticket("1", 1)


CALLS: dict[str, Call] = {
    "enqueue": lambda app: app.get_task(DOUBLE).enqueue(1),
    "enqueue_many": lambda app: app.queue("q").enqueue_many([1]),
    "enqueue_and_wait": lambda app: app.queue("q").enqueue_and_wait(1),
    "result": lambda app: rebuilt_ticket(app).result(),
    "get": lambda app: app.queue("q").get("1"),
    "counts": lambda app: app.queue("q").counts(),
    "queues": lambda app: app.queues(),
    "list": list_jobs,
    "events": follow,
    "receive": receive,
    "open": lambda app: app.open(),
    "close": lambda app: app.close(),
    "async with": enter,
    "work": lambda app: app.work(until="empty"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_async_calls_under_trio_say_what_to_do(call: Call, storage_url: str) -> None:
    app = Dibs(storage_url)
    app.task(double)

    for run in (trio.run, partial(anyio.run, backend="trio")):
        with pytest.raises(ConfigurationError, match=r"runs trio.*trio.to_thread.run_sync.*asyncio backend"):
            run(call, app)


def test_a_coroutine_that_no_event_loop_runs_says_so() -> None:
    with pytest.raises(ConfigurationError, match="no event loop of asyncio runs on this thread"):
        Dibs("memory:").queue("q").enqueue(1).send(None)


def test_blocking_calls_run_on_threads_of_trio(tmp_path: Path) -> None:
    queue = Dibs(f"file:{tmp_path}/jobs").queue("q").sync

    async def main() -> int:
        with pytest.raises(ConfigurationError, match="would stop the event loop of this thread"):
            queue.enqueue(1)
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(trio.to_thread.run_sync, partial(queue.enqueue, n))
        return (await trio.to_thread.run_sync(queue.counts)).waiting

    assert 20 == trio.run(main)


def test_the_asyncio_backend_of_anyio_awaits(storage_url: str) -> None:
    async def main() -> int:
        async with Dibs(storage_url) as app:
            queue = app.queue("q")
            async with anyio.create_task_group() as group:
                for n in range(20):
                    group.start_soon(queue.enqueue, n)
            return (await queue.counts()).waiting

    assert 20 == anyio.run(main, backend="asyncio")
