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
    Reject,
    Retention,
    WaitTimeout,
)
from dibs.client.connection.outcome_wait import OutcomeWait
from dibs.errors import DibsError
from dibs.model.job import JobData, NewJob
from dibs.model.job import OutcomeRetention as KeptFor
from dibs.model.requests import Complete, EnqueueRequest, JobPatch, RetryLater
from tests.lineage import scripted_handlers
from tests.lineage.protocol_client import START, ProtocolClient
from tests.lineage.scripted_handlers import claim_one

# -- retention ---------------------------------------------------------------------------------------------


async def test_an_outcome_expires_and_its_id_is_new_again(protocol: ProtocolClient) -> None:
    """All verbs ignore an expired outcome, also before it is pruned."""
    await protocol.enqueue(retention=KeptFor(completed=1000))
    await protocol.settle(await protocol.claim_one(), Complete(result=b"1"))
    protocol.now += 999
    assert "completed" == (await protocol.enqueue("a", Reject())).status
    protocol.now += 1

    assert "not_found" == await protocol.cancel()
    assert "queued" == (await protocol.enqueue("a", Reject())).status


async def test_one_short_retention_concerns_no_other_job(protocol: ProtocolClient) -> None:
    """Pruning an expired outcome keeps the others."""
    for id, age in (("long", 1_000_000), ("short", 1), ("default", None)):
        await protocol.enqueue(id, retention=None if age is None else KeptFor(completed=age))
        await protocol.settle(await protocol.claim_one(), Complete(result=b"1"))
    protocol.now += 1000
    await protocol.storage.prune("q", 100, now=protocol.now)

    assert b"1" == (await protocol.outcome("long")).result
    assert b"1" == (await protocol.outcome("default")).result
    assert (await protocol.slot("short")).outcome is None


async def test_retention_can_be_changed_later(protocol: ProtocolClient) -> None:
    """The new retention counts from the time of the change. An unknown id replies not_found."""
    amend = protocol.storage.amend
    patch = JobPatch(retention=KeptFor(completed=5000))
    assert "not_found" == await amend("q", "a", patch, now=protocol.now)
    await protocol.enqueue()
    assert "amended" == await amend("q", "a", patch, now=protocol.now)
    await protocol.settle(await protocol.claim_one(), Complete(result=b"1"))
    assert protocol.now + 5000 == (await protocol.outcome()).expires_at
    protocol.now += 4999
    assert "amended" == await amend("q", "a", patch, now=protocol.now)

    assert START + 4999 + 5000 == (await protocol.outcome()).expires_at


async def test_a_duplicate_keeps_the_retention_of_the_first_enqueue(protocol: ProtocolClient) -> None:
    """This holds under Reject, alone and in a batch. Update replaces the retention together with the data."""
    rejects = Reject(failed=True)
    await protocol.enqueue("a", rejects, retention=KeptFor(completed=5000))
    await protocol.enqueue("a", rejects, retention=KeptFor(completed=1))
    batch = [
        EnqueueRequest(
            job=NewJob(id="b", data=JobData(retention=KeptFor(completed=age))), on_conflict=rejects
        )
        for age in (5000, 1)
    ]
    await protocol.storage.enqueue("q", batch, now=protocol.now)
    await protocol.enqueue("c", retention=KeptFor(completed=1))
    await protocol.enqueue("c", retention=KeptFor(completed=5000))
    for _ in "abc":
        await protocol.settle(await protocol.claim_one(), Complete(result=b"1"))

    assert [START + 5000] * 3 == [(await protocol.outcome(id)).expires_at for id in "abc"]


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


async def test_the_times_and_counts_of_a_job_are_its_own(protocol: ProtocolClient) -> None:
    """Retries keep the time of the enqueue; attempts count claims."""
    await protocol.enqueue()
    for _ in range(2):
        protocol.now += 1000
        await protocol.settle(await protocol.claim_one(), RetryLater(delay=0))
    protocol.now += 1000
    await protocol.settle(await protocol.claim_one(), Complete())

    outcome = await protocol.outcome()
    assert (START, START + 3000) == (outcome.enqueued_at, outcome.ended_at)
    assert (3, 2) == (outcome.attempts, outcome.retries)


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


async def test_a_payload_has_no_envelope_of_ours(protocol: ProtocolClient) -> None:
    """The payload is stored as opaque bytes without an envelope."""
    payload = bytes(range(256))
    await protocol.enqueue(payload=payload)
    job = await protocol.claim_one()
    await protocol.settle(job, RetryLater(delay=0))

    assert JobData(payload=payload) == (await protocol.current()).data
