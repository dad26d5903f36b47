"""An application that uses the public API widely: mypy and pyright accept it with strict settings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import dibs
from dibs import Dibs, JobSettings, TaskSettings

app = Dibs("memory:")
LIMITS: TaskSettings = {"timeout": 30, "max_retries": 5, "backoff": dibs.Exponential(1, 60)}
URGENT: JobSettings = {"priority": 100, "retention": timedelta(days=1)}


class Pool:
    def close(self) -> None: ...


@app.lifespan
async def pool() -> AsyncIterator[Pool]:
    opened = Pool()
    yield opened
    opened.close()


@app.task
def thumbnail(path: str, width: int = 200) -> str:
    return f"{path}@{width}"


@app.task(**LIMITS)
async def refresh(count: int) -> list[int]:
    await dibs.current_job().progress({"done": 0})
    return list(range(count))


@app.task(cron="0 3 * * *", tz="Europe/Berlin", catch_up=False)
def nightly() -> None: ...


@thumbnail.on_failure
def alert(failure: dibs.Failure) -> None:
    assert_type(failure.error, dibs.Error)


@thumbnail.after
def shorten(ending: dibs.Ending) -> None:
    ending.retention = dibs.Retention(completed=None)


mail = app.queue("mail", serde=dibs.MessagePackSerde())


@mail.handler(timeout=60)
async def send(data: dict[str, str], job: dibs.CurrentJob) -> None:
    job.then(thumbnail.bind("a.png"))
    if job.cancelled:
        raise dibs.PermanentError
    raise dibs.Retry(delay=5)


@asynccontextmanager
async def traced(
    queue: str, requests: Sequence[dibs.EnqueueRequest]
) -> AsyncGenerator[Sequence[dibs.EnqueueRequest], None]:
    yield requests


@contextmanager
def timed(job: dibs.CurrentJob) -> Generator[None, None, None]:
    yield


app.middleware(enqueue=traced, run=timed)


async def enqueue() -> None:
    async with app:
        assert_type(await thumbnail.enqueue("a.png", width=100), dibs.Ticket[str])
        assert_type(await thumbnail.enqueue_and_wait("a.png"), str)
        assert_type(await refresh.options(**URGENT).enqueue_and_wait(5), list[int])
        later = thumbnail.options(id="a", delay=60)
        assert_type(await later.enqueue("a.png"), dibs.Ticket[str])
        assert_type(await refresh(5), list[int])
        assert_type(thumbnail("a"), str)
        tickets = await thumbnail.enqueue_many(thumbnail.bind(path) for path in ("a", "b"))
        assert_type(tickets, Sequence[dibs.Ticket[str]])
        await mail.enqueue({"to": "x"}, run_at=datetime.now(UTC), on_conflict=dibs.Reject(failed=True))
        answer: str = await mail.enqueue_and_wait({"to": "x"}, wait=5, **URGENT)
        assert answer


async def inspect(ticket: dibs.Ticket[str]) -> None:
    assert_type(await ticket.result(wait=timedelta(seconds=5)), str)
    assert_type(await ticket.status(), dibs.Status)
    assert_type(await mail.get("a"), dibs.Status | None)
    async for status in mail.list("failed"):
        assert_type(status.error, dibs.Error | None)
    assert_type(await mail.counts(), dibs.Counts)
    assert_type(await mail.prune(), dibs.PruneResult)
    await mail.configure(max_active=5, log_level="all", retention=None)
    await mail.amend("a", attributes={"tenant": 5}, delay=60)
    async with mail.events(kinds=["completed", "progress"]) as events:
        async for event in events:
            assert_type(event, dibs.Event)


async def receive() -> None:
    async with mail.receive(max_jobs=5, lease=timedelta(minutes=1)) as claims:
        assert_type(claims, dibs.Receiver)
        async for claim in claims:
            assert_type(claim, dibs.Claim)
            await claim.complete({"sent": True}, then=[thumbnail.bind("a.png")])


def block(blocking: dibs.BlockingDibs) -> None:
    assert_type(app.sync, dibs.BlockingDibs)
    with blocking:
        assert_type(thumbnail.sync.enqueue("a", width=5), dibs.BlockingTicket[str])
        assert_type(refresh.sync.options(wait=1).enqueue_and_wait(5), list[int])
        queue: dibs.BlockingQueue = blocking.queue("mail")
        ticket: dibs.BlockingTicket[Any] = queue.enqueue({"to": "x"}, **URGENT)
        assert_type(ticket.status(), dibs.Status)
        with queue.receive(wait=0) as claims:
            for claim in claims:
                assert_type(claim, dibs.BlockingClaim)
                claim.fail(ValueError("too bad"))


async def work() -> int:
    report = await app.work(["mail"], processes=None, until="empty", lease=15, heartbeat=5, poll=0.5)
    assert_type(report, dibs.WorkReport)
    assert_type(report.queue("mail"), dibs.QueueReport)
    return report.total("completed")


async def override(storage: dibs.Storage) -> None:
    with app.override_storage(storage):
        await enqueue()
    async with app.using("memory:") as same:
        assert_type(same, Dibs)
