"""@platformatic/job-queue: retention of outcomes, and the status of a job."""

from __future__ import annotations

import asyncio

import pytest

from dibs import (
    ConfigurationError,
    Dibs,
    JobCancelled,
    JobEnded,
    JobFailed,
    OutcomeNotKept,
    Queue,
    Refused,
    Retention,
    WaitTimeout,
)
from dibs.client.connection.outcome_wait import OutcomeWait
from dibs.errors import DibsError
from dibs.model.job import OutcomeRetention as KeptFor
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import claim_one

# -- retention ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, "soon", True, float("nan")])
async def test_a_retention_that_is_no_time_is_refused(queue: Queue, bad: float) -> None:
    with pytest.raises(Refused):
        await queue.enqueue(1, retention=bad)
    with pytest.raises(Refused):
        await queue.enqueue(1, retention=Retention(completed=bad))


async def test_who_waits_lets_the_outcome_outlive_the_wait(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a", retention=1)
    waiting = asyncio.ensure_future(OutcomeWait(queue._client, "a", ticket.revision, 30).wait_for_end())
    await told_amended(queue)
    await (await claim_one(queue)).complete("x")
    await waiting

    status = await queue.get("a")
    assert status is not None
    assert status.ended_at is not None
    assert status.expires_at is not None
    assert (status.expires_at - status.ended_at).total_seconds() > 60


async def told_amended(queue: Queue) -> None:
    """Wait until the retention of the job is changed."""
    async with asyncio.timeout(scripted_handlers.TIMEOUT):
        while True:
            [slot] = await (await queue._client.storage()).get("q", ["a"])
            assert slot.current is not None
            if slot.current.data.retention != KeptFor(completed=1000, failed=1000, cancelled=1000):
                return
            await asyncio.sleep(0.001)


# -- the status of a job -----------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["a/b", "../../etc/passwd", "a:b", "a:b:c", "{a}", "a b", "ä€🙂", ".", "con"])
async def test_any_text_is_an_id_from_end_to_end(queue: Queue, id: str) -> None:
    """The id can be enqueued, waited for, claimed, listed, read from the log and forgotten."""
    ticket = await queue.enqueue(1, id=id)
    waiting = asyncio.ensure_future(ticket.result(scripted_handlers.TIMEOUT))
    await asyncio.sleep(0)
    claim = await claim_one(queue)
    assert id == claim.id
    await claim.complete(id)

    assert id == await waiting
    assert [id] == [status.id async for status in queue.list("completed")]
    assert id == (await scripted_handlers.read_events(queue, 1))[0].id
    assert await queue.forget(id)


async def test_the_errors_are_one_tree(app: Dibs, queue: Queue) -> None:
    """Errors of a job's end derive from JobEnded; other errors do not."""
    for kind in (JobFailed, JobCancelled, OutcomeNotKept):
        assert issubclass(kind, JobEnded)
    assert all(issubclass(kind, DibsError) for kind in (JobEnded, WaitTimeout, Refused, ConfigurationError))
    assert not issubclass(JobEnded, WaitTimeout)
    ticket = await queue.enqueue(1, id="a")
    await ticket.cancel()
    with pytest.raises(JobEnded) as ended:
        await ticket.result(0)
    assert ("q", "a") == (ended.value.queue, ended.value.id)
