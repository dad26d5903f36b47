"""Calls that mypy must accept, and wrong calls, each with an ignore that names its error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import assert_type

from dibs import (
    Bound,
    CurrentJob,
    Dibs,
    Ending,
    Event,
    Exponential,
    Failure,
    Fixed,
    Immediate,
    JsonSerde,
    MessagePackSerde,
    Queue,
    Reject,
    Retention,
    Retry,
    Task,
    Ticket,
    Update,
    content_id,
)

app = Dibs("memory:")


@app.task
def thumbnail(path: str, width: int = 200) -> str:
    return path


@app.task(timeout=30, max_retries=None, queue="refreshing")
async def refresh(count: int) -> list[int]:
    return [count]


@app.bulk_task(most=10)
async def embed(texts: list[str]) -> list[float]:
    return [0.0 for _ in texts]


@app.bulk_task()
def count_words(texts: list[str]) -> None: ...


async def enqueue_in_bulk() -> None:
    assert_type(await (await embed.enqueue("a")).result(), float)
    assert_type(await embed("a"), float)
    await count_words.enqueue("a")
    await embed.enqueue(["a"])  # type: ignore[arg-type]


async def replace_a_run(queue: Queue) -> None:
    await thumbnail.options(supersede=True).enqueue("a", 1)
    await queue.configure(max_waiting=10_000, when_full="drop_new")
    await queue.configure(when_full="drop_old")  # type: ignore[arg-type]
    await queue.configure(fair=True, shares={"acme": 3, "old": None})
    await queue.configure(shares=["acme"])  # type: ignore[arg-type]
    await queue.pause(key="acme")
    await queue.resume(key="acme", share=3)
    await queue.resume("acme")  # type: ignore[call-arg]


@thumbnail.on_failure
async def alert(failure: Failure) -> None: ...


@refresh.on_failure(max_retries=99)
def alert_too(failure: Failure) -> None: ...


@thumbnail.after
def shorten(ending: Ending) -> None:
    ending.result = "short"


@refresh.after
async def keep(ending: Ending) -> None:
    ending.retention = Retention(completed=None)


@app.task(every="5m", catch_up=False, overlap="replace")
async def often() -> None: ...


@app.task(capture_logs="INFO")
async def logged() -> None: ...


@app.task(cron="0 3 * * *", tz="Europe/Berlin", executor="process", backoff=Fixed(5), size=50)
def nightly() -> None: ...


@app.task(serde=MessagePackSerde())
def variadic(first: bytes, *rest: int, flag: bool = False, **named: str) -> None: ...


@app.lifespan
async def pools() -> AsyncIterator[int]:
    yield 5


queue = app.queue("emails", serde=JsonSerde())


@queue.handler(timeout=60)
async def send(data: dict[str, str]) -> None: ...


async def good() -> None:
    assert_type(await thumbnail.options(id="a", delay=60, wait=30).enqueue_and_wait("a.png"), str)
    assert_type(await (await refresh.enqueue(count=3)).result(wait=10), list[int])
    assert_type(refresh.sync.enqueue(5).result(), list[int])
    assert_type(await thumbnail.ticket("a", 1).result(wait=0), str)
    assert_type(refresh.sync.ticket("a", 1).result(wait=0), list[int])
    assert_type(thumbnail.queue, Queue)
    await send({"to": "x"})
    async with queue.events("", ids=["a"], kinds=["completed", "queued"]) as events:
        async for event in events:
            assert_type(event, Event)
    with app.sync.queue("emails").events() as blocking_events:
        assert_type(next(blocking_events), Event)
    app.sync.work(until="empty")


@queue.on_failure(timeout=5)
async def lost(failure: Failure, job: CurrentJob) -> None:
    assert_type(failure.attempts, int)
    assert_type(job.fence, int)


async def good_settings() -> None:
    both = timedelta(seconds=5)
    await thumbnail.options(
        delay=both,
        retention=Retention(failed=both, completed=None),
        backoff=Exponential(2, 300),
        timeout=None,
    ).enqueue("a")
    await thumbnail.options(run_at=datetime.now().astimezone(), on_conflict=Reject(failed=True)).enqueue("a")
    await thumbnail.options(on_conflict=Update(data=False, run_at="later"), request_key="k").enqueue("a")
    await thumbnail.options(backoff=Immediate(), attributes={"tenant": 5}, max_stalls=0, lease=5).enqueue("a")
    await thumbnail.options(id=content_id({"a": 1}), connection=object()).enqueue("a")
    await variadic.enqueue(b"a", 1, 2, flag=True, name="x")
    assert_type(await often.enqueue(), Ticket[None])
    assert_type(nightly(), None)
    assert_type(thumbnail.bind("a"), Bound[str])
    assert_type(await thumbnail.enqueue_many([thumbnail.bind("a")]), Sequence[Ticket[str]])


def takes_a_task(task: Task[[str, int], str]) -> None: ...


def takes_a_number(number: int) -> None: ...


async def bad() -> None:
    thumbnail(5)  # type: ignore[arg-type]
    thumbnail.enqueue(width="x")  # type: ignore[call-arg, arg-type, unused-coroutine]
    await thumbnail.enqueue("a", width="x")  # type: ignore[arg-type]
    await thumbnail.enqueue("a", wide=5)  # type: ignore[call-arg]
    await thumbnail.enqueue("a", id="b")  # type: ignore[call-arg]
    await thumbnail.options(id="a").enqueue_and_wait(5)  # type: ignore[arg-type]
    thumbnail.options(idd="a")  # type: ignore[call-arg]
    thumbnail.options(delay=["soon"])  # type: ignore[arg-type]
    thumbnail.bind()  # type: ignore[call-arg]
    await refresh.enqueue("a")  # type: ignore[arg-type]
    thumbnail.sync.enqueue(5)  # type: ignore[arg-type]
    thumbnail.sync.options(id="a").enqueue_and_wait(width=5)  # type: ignore[call-arg]
    await queue.enqueue(1, idd="a")  # type: ignore[call-arg]
    await queue.configure(max_activ=5)  # type: ignore[call-arg]
    queue.handler(timeout=["x"])  # type: ignore[call-overload]
    app.task(max_retrys=5)  # type: ignore[call-overload]
    thumbnail.options(on_conflict="reject")  # type: ignore[arg-type]
    thumbnail.options(retention=["1h"])  # type: ignore[arg-type]
    thumbnail.options(backoff=5)  # type: ignore[arg-type]
    await queue.enqueue(1, wait=5)  # type: ignore[call-arg]
    await variadic.enqueue("a")  # type: ignore[arg-type]
    await variadic.enqueue(b"a", "b")  # type: ignore[arg-type]
    await variadic.enqueue(b"a", name=5)  # type: ignore[arg-type]
    await nightly.enqueue(1)  # type: ignore[call-arg]
    app.task(every=5, executor="gpu")  # type: ignore[call-overload]
    app.task(serde="json")  # type: ignore[call-overload]
    queue.events(kinds=["finished"])  # type: ignore[list-item]
    await queue.configure(log_level="loud")  # type: ignore[arg-type]
    await app.work(until="done")  # type: ignore[arg-type]
    Update(run_at="soon")  # type: ignore[arg-type]
    Retry(at="soon")  # type: ignore[arg-type]
    (await thumbnail.enqueue("a")).result(["5"])  # type: ignore[arg-type, unused-coroutine]
    takes_a_number(await thumbnail.options().enqueue_and_wait("a"))  # type: ignore[arg-type]
    takes_a_number(await (await queue.enqueue(1)).status())  # type: ignore[arg-type]
    takes_a_task(refresh)  # type: ignore[arg-type]
    thumbnail.after(alert)  # type: ignore[type-var]
