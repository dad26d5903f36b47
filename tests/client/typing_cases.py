"""Calls that must type-check, and calls that must not: each of these says which error it is."""

from __future__ import annotations

from typing import assert_type

from dibs import Claim, Dibs, Failure, Queue, Task, Ticket
from dibs.client.blocking import BlockingTicket

app = Dibs("memory:")


@app.task
def thumbnail(path: str, width: int = 200) -> str:
    return path


@app.task(timeout=30, max_retries=None, queue="refreshing")
async def refresh(count: int) -> list[int]:
    return [count]


@thumbnail.on_failure
async def alert(failure: Failure) -> None: ...


@refresh.on_failure(max_retries=99)
def alert_too(failure: Failure) -> None: ...


queue = app.queue("emails")


@queue.handler(timeout=60)
async def send(data: dict[str, str]) -> None: ...


async def good() -> None:
    assert_type(thumbnail("a", width=5), str)
    assert_type(await refresh(5), list[int])
    assert_type(await thumbnail.enqueue("a.png", width=100), Ticket[str])
    assert_type(await thumbnail.options(id="a", delay=60, wait=30).run("a.png"), str)
    assert_type(await refresh.options(priority=5).run(3), list[int])
    assert_type(await (await refresh.enqueue(count=3)).result(wait=10), list[int])
    assert_type(thumbnail.sync.enqueue("a"), BlockingTicket[str])
    assert_type(thumbnail.sync.options(wait=1).run("a"), str)
    assert_type(refresh.sync.enqueue(5).result(), list[int])
    assert_type(thumbnail.queue, Queue)
    await thumbnail.enqueue_many(thumbnail.bind(path) for path in ("a", "b"))
    await queue.enqueue({"to": "x"}, id="a", retention=None)
    await send({"to": "x"})
    async with queue.receive() as claims:
        async for claim in claims:
            assert_type(claim, Claim)


def takes_a_task(task: Task[[str, int], str]) -> None: ...


async def bad() -> None:
    thumbnail(5)  # type: ignore[arg-type]
    thumbnail.enqueue(width="x")  # type: ignore[call-arg, arg-type, unused-coroutine]
    await thumbnail.enqueue("a", width="x")  # type: ignore[arg-type]
    await thumbnail.enqueue("a", wide=5)  # type: ignore[call-arg]
    await thumbnail.enqueue("a", id="b")  # type: ignore[call-arg]
    await thumbnail.options(id="a").run(5)  # type: ignore[arg-type]
    thumbnail.options(idd="a")  # type: ignore[call-arg]
    thumbnail.options(delay="soon")  # type: ignore[arg-type]
    thumbnail.bind()  # type: ignore[call-arg]
    await refresh.enqueue("a")  # type: ignore[arg-type]
    thumbnail.sync.enqueue(5)  # type: ignore[arg-type]
    thumbnail.sync.options(id="a").run(width=5)  # type: ignore[call-arg]
    await queue.enqueue(1, idd="a")  # type: ignore[call-arg]
    await queue.configure(max_activ=5)  # type: ignore[call-arg]
    queue.handler(timeout="x")  # type: ignore[call-overload]
    app.task(max_retrys=5)  # type: ignore[call-overload]
