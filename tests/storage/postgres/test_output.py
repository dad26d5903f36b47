"""The output of runs on Postgres: the rows that an end leaves, and what a queue without output pays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from dibs.model.job import Error, Job, OutcomeRetention
from dibs.model.requests import Fail, RetryLater, SettingsPatch, Settlement
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done, leased

Connect = Callable[[], Any]
#: A report on a connection of the test, which commits later.
REPORT = "SELECT report('q', 'a', %s, NULL, NULL, ARRAY['2'::bytea], 1000000, NULL)"
RETRY = RetryLater(delay=0, cause="error", error=Error(type="E", message="m"))
SHORT = SettingsPatch(retention=OutcomeRetention(completed=0, failed=0))


def end(job: Job, action: RetryLater | None = None) -> Settlement:
    """Return a settlement that the general way of settle takes; a failure without `action`."""
    return Settlement(id=job.id, fence=fence(job), action=action or Fail(error=Error(type="E", message="m")))


def fence(job: Job) -> int:
    assert job.run is not None
    return job.run.fence


async def report(storage: PostgresStorage, job: Job, output: bytes) -> None:
    assert "reported" == await storage.report("q", job.id, fence(job), output=[output])


async def rows(connect: Connect) -> list[str]:
    """Return the id of each row of output."""
    connection = await connect()
    await connection.set_autocommit(True)
    return [id for (id,) in await (await connection.execute("SELECT id FROM output ORDER BY id")).fetchall()]


async def running(storage: PostgresStorage, *ids: str, output: bytes = b"1") -> tuple[Job, ...]:
    """Enqueue and claim jobs, and report output of each."""
    await storage.enqueue("q", [asked(id) for id in ids])
    jobs = await claimed(storage)
    for job in jobs:
        await report(storage, job, output)
    return jobs


async def values(storage: PostgresStorage, id: str) -> list[bytes | None]:
    return [event.result for _, event in (await storage.events("q", id=id)).events]


@pytest.mark.parametrize("kind", ["plain", "general"])
async def test_an_end_without_retention_leaves_no_row(
    storage: PostgresStorage, connect: Connect, kind: str
) -> None:
    await storage.configure("q", SHORT)
    jobs = await running(storage, *(str(number) for number in range(10)))
    ends = [done(job) if kind == "plain" else end(job) for job in jobs]
    await storage.settle("q", ends)

    assert [] == await rows(connect)


async def test_an_end_removes_the_rows_of_the_job_before(storage: PostgresStorage, connect: Connect) -> None:
    for value in (b"1", b"2", b"3"):
        (job,) = await running(storage, "a", output=value)
        await storage.settle("q", [done(job)])

    assert [b"3"] == await values(storage, "a")
    assert ["a"] == await rows(connect)


async def test_forget_and_prune_leave_no_row(storage: PostgresStorage, connect: Connect) -> None:
    _, ended, expired, again = await running(storage, "a", "b", "c", "d")
    await storage.settle("q", [done(ended), done(again)])
    await storage.configure("q", SHORT)
    await storage.settle("q", [end(expired)])
    await storage.forget("q", ["a", "b"])
    await storage.prune("q", 100)
    assert ["d"] == await rows(connect)

    (job,) = await running(storage, "d", output=b"2")
    assert [b"1", b"2"] == await values(storage, "d")
    await storage.settle("q", [end(job, RETRY)])
    await storage.forget("q", ["d"])
    assert [] == await rows(connect)


@pytest.mark.parametrize("kind", ["plain", "general"])
async def test_an_end_that_waits_for_a_report_removes_its_row(
    storage: PostgresStorage, connect: Connect, kind: str
) -> None:
    """The statement that ends the run began before the report was committed."""
    await storage.configure("q", SHORT)
    (job,) = await running(storage, "a")
    reporting = await connect()
    await reporting.execute(REPORT, [fence(job)])
    ending = asyncio.ensure_future(storage.settle("q", [done(job) if kind == "plain" else end(job)]))
    await asyncio.sleep(0.2)
    assert not ending.done()
    await reporting.commit()

    assert ["done"] == [one.status for one in await ending]
    assert [] == await rows(connect)


async def test_a_transaction_with_an_older_snapshot_ends_a_run_that_has_reported(
    storage: PostgresStorage, connect: Connect
) -> None:
    """The report does not fail it. What it does not see, prune removes."""
    await storage.configure("q", SHORT)
    (job,) = await running(storage, "a")
    mine = await connect()
    await mine.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await mine.execute("SELECT count(*) FROM live")
    await report(storage, job, b"late")
    assert "done" == (await storage.in_transaction(mine).settle("q", [done(job)]))[0].status
    await mine.commit()

    assert [] == await values(storage, "a")
    await storage.prune("q", 100)
    assert [] == await rows(connect)


async def test_reports_of_two_connections_are_ordered_as_they_commit(
    storage: PostgresStorage, connect: Connect
) -> None:
    """A reader who has the second offset has the first one."""
    (job,) = await running(storage, "a")
    first = await connect()
    await first.execute(REPORT, [fence(job)])
    second = asyncio.ensure_future(report(storage, job, b"3"))
    await asyncio.sleep(0.2)
    assert [b"1"] == await values(storage, "a")
    await first.commit()
    await second

    assert [b"1", b"2", b"3"] == await values(storage, "a")


async def test_output_alone_wakes_a_wait_for_progress(storage: PostgresStorage) -> None:
    (job,) = await running(storage, "a")
    since = (await storage.wait(["q"], for_="progress", ids=["a"], timeout=0)).since
    waiting = asyncio.ensure_future(storage.wait(["q"], for_="progress", ids=["a"], since=since, timeout=30))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await report(storage, job, b"2")

    assert (await asyncio.wait_for(waiting, 5)).woken


async def test_a_queue_without_output_does_not_open_its_table(
    storage: PostgresStorage, connect: Connect
) -> None:
    """Another session holds the table, so a statement that only plans to read it would wait."""
    other = await running(storage, "other")
    await storage.configure("plain", SHORT)
    holding = await connect()
    await holding.execute("LOCK TABLE output IN ACCESS EXCLUSIVE MODE")
    limited = storage.limit_lock_waits(1)
    for queue in ("new", "plain"):
        await limited.enqueue(queue, [asked(str(number)) for number in range(10)])
        lease = await leased(limited, queue)
        jobs = (await limited.claim(queue, lease, 10)).jobs
        assert "reported" == await limited.report(queue, jobs[0].id, fence(jobs[0]), b"1", b"memo")
        await limited.settle(queue, [done(job) for job in jobs[4:]])
        await limited.settle(queue, [end(jobs[0]), end(jobs[1]), end(jobs[2], RETRY)])
        await limited.cancel(queue, [jobs[2].id])
        await limited.retry_failed(queue, [jobs[0].id])
        await limited.drop([queue], lease, 10)
        await limited.forget(queue, [job.id for job in jobs])
        await limited.prune(queue, 100)
    await limited.enqueue("q", [asked("next")])
    await holding.rollback()

    assert [b"1"] == await values(storage, other[0].id)
