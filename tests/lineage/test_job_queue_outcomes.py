"""@platformatic/job-queue: how long ends are kept, and what is known of a job."""

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
    Reject,
    Retention,
    WaitTimeout,
)
from dibs.client.connection.outcome_wait import OutcomeWait
from dibs.errors import DibsError
from dibs.model.job import JobData
from dibs.model.job import OutcomeRetention as KeptFor
from dibs.model.requests import Complete, JobPatch, RetryLater
from tests.lineage import actors
from tests.lineage.actors import claimed
from tests.lineage.clerk import START, Clerk

# -- retention ---------------------------------------------------------------------------------------------


async def test_an_outcome_expires_and_its_id_is_new_again(clerk: Clerk) -> None:
    """To every verb at the same moment, before anything prunes it."""
    await clerk.put(retention=KeptFor(completed=1000))
    await clerk.settle(await clerk.take(), Complete(result=b"1"))
    clerk.now += 999
    assert "completed" == (await clerk.put("a", Reject())).status
    clerk.now += 1

    assert "not_found" == await clerk.cancel()
    assert "queued" == (await clerk.put("a", Reject())).status


async def test_one_short_retention_concerns_no_other_job(clerk: Clerk) -> None:
    """However short it is, and whatever is pruned."""
    for id, age in (("long", 1_000_000), ("short", 1), ("default", None)):
        await clerk.put(id, retention=None if age is None else KeptFor(completed=age))
        await clerk.settle(await clerk.take(), Complete(result=b"1"))
    clerk.now += 1000
    await clerk.storage.prune("q", 100, now=clerk.now)

    assert b"1" == (await clerk.outcome("long")).result
    assert b"1" == (await clerk.outcome("default")).result
    assert (await clerk.slot("short")).outcome is None


async def test_retention_can_be_changed_later(clerk: Clerk) -> None:
    """Counting from now, of the result and of what makes the id known; told where there is none."""
    amend = clerk.storage.amend
    patch = JobPatch(retention=KeptFor(completed=5000))
    assert "not_found" == await amend("q", "a", patch, now=clerk.now)
    await clerk.put()
    assert "amended" == await amend("q", "a", patch, now=clerk.now)
    await clerk.settle(await clerk.take(), Complete(result=b"1"))
    assert clerk.now + 5000 == (await clerk.outcome()).expires_at
    clerk.now += 4999
    assert "amended" == await amend("q", "a", patch, now=clerk.now)

    assert START + 4999 + 5000 == (await clerk.outcome()).expires_at


@pytest.mark.parametrize("bad", [-1, "1h", True, float("nan")])
async def test_a_retention_that_is_no_time_is_refused(queue: Queue, bad: float) -> None:
    with pytest.raises(Refused):
        await queue.enqueue(1, retention=bad)
    with pytest.raises(Refused):
        await queue.enqueue(1, retention=Retention(completed=bad))


async def test_who_waits_lets_the_outcome_outlive_the_wait(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a", retention=1)
    waiting = asyncio.ensure_future(OutcomeWait(queue._client, "a", ticket.revision, 30).end())
    await told_amended(queue)
    await (await claimed(queue)).complete("x")
    await waiting

    status = await queue.get("a")
    assert status is not None
    assert status.ended_at is not None
    assert status.expires_at is not None
    assert (status.expires_at - status.ended_at).total_seconds() > 60


async def told_amended(queue: Queue) -> None:
    """Wait until somebody has changed the retention of the job."""
    async with asyncio.timeout(actors.SOON):
        while True:
            [slot] = await (await queue._client.storage()).get("q", ["a"])
            assert slot.current is not None
            if slot.current.data.retention != KeptFor(completed=1000, failed=1000, cancelled=1000):
                return
            await asyncio.sleep(0.001)


# -- what is known of a job --------------------------------------------------------------------------------


async def test_the_times_and_counts_of_a_job_are_its_own(clerk: Clerk) -> None:
    """When it was enqueued stays so whatever happens to it; attempts count claims."""
    await clerk.put()
    for _ in range(2):
        clerk.now += 1000
        await clerk.settle(await clerk.take(), RetryLater(delay=0))
    clerk.now += 1000
    await clerk.settle(await clerk.take(), Complete())

    outcome = await clerk.outcome()
    assert (START, START + 3000) == (outcome.enqueued_at, outcome.ended_at)
    assert (3, 2) == (outcome.attempts, outcome.retries)


@pytest.mark.parametrize("id", ["a/b", "../../etc/passwd", "a:b", "a:b:c", "{a}", "a b", "ä€🙂", ".", "con"])
async def test_any_text_is_an_id_from_end_to_end(queue: Queue, id: str) -> None:
    """Enqueued, waited for, claimed, listed, told and forgotten."""
    ticket = await queue.enqueue(1, id=id)
    waiting = asyncio.ensure_future(ticket.result(actors.SOON))
    await asyncio.sleep(0)
    claim = await claimed(queue)
    assert id == claim.id
    await claim.complete(id)

    assert id == await waiting
    assert [id] == [status.id async for status in queue.list("completed")]
    assert id == (await actors.read(queue, 1))[0].id
    assert await queue.forget(id)


async def test_the_errors_are_one_tree(app: Dibs, queue: Queue) -> None:
    """What ended without a result is JobEnded; what the storage says is never mistaken for a job's end."""
    for kind in (JobFailed, JobCancelled, OutcomeNotKept):
        assert issubclass(kind, JobEnded)
    assert all(issubclass(kind, DibsError) for kind in (JobEnded, WaitTimeout, Refused, ConfigurationError))
    assert not issubclass(JobEnded, WaitTimeout)
    ticket = await queue.enqueue(1, id="a")
    await ticket.cancel()
    with pytest.raises(JobEnded) as ended:
        await ticket.result(0)
    assert ("q", "a") == (ended.value.queue, ended.value.id)


async def test_a_payload_has_no_envelope_of_ours(clerk: Clerk) -> None:
    """Opaque bytes: a serde of the user's sees the payload and nothing around it."""
    payload = bytes(range(256))
    await clerk.put(payload=payload)
    job = await clerk.take()
    await clerk.settle(job, RetryLater(delay=0))

    assert JobData(payload=payload) == (await clerk.current()).data
