"""queasy: settlements, heartbeats, dead clients and the order of claims."""

from __future__ import annotations

import pytest

from dibs import Dibs, Queue, Reject, Update
from dibs.model.job import Error
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.results import ReapedJob
from tests.lineage import scripted_handlers
from tests.lineage.protocol_client import START, ProtocolClient, fence_of
from tests.lineage.scripted_handlers import set_handler

EVERY: list[SettleAction] = [
    Complete(result=b"1"),
    Fail(error=Error(type="Oops")),
    Cancelled(),
    RetryLater(delay=0),
    Release(),
    HandOff(),
]
named = pytest.mark.parametrize("how", EVERY, ids=lambda how: type(how).__name__)


# -- settlements -----------------------------------------------------------------------------------------


@named
async def test_nothing_settles_what_is_not_active(protocol: ProtocolClient, how: SettleAction) -> None:
    """Contract 3: a settlement without an active run of this fence is `lost` and changes no record."""
    await protocol.enqueue("waiting")
    before = await protocol.slot("waiting")
    settlements = [Settlement(id=id, fence=7, action=how) for id in ("waiting", "unknown")]
    answers = await protocol.storage.settle("q", settlements, now=protocol.now)

    assert ["lost", "lost"] == [answer.status for answer in answers]
    assert before == await protocol.slot("waiting")
    assert 0 == (await protocol.storage.counts(["q!fail"], now=protocol.now))["q!fail"].waiting


@named
async def test_a_late_holder_changes_nothing(protocol: ProtocolClient, how: SettleAction) -> None:
    """Promise 2: after a reap, the old holder cannot settle the run."""
    await protocol.enqueue()
    old = await protocol.stall()
    new = await protocol.claim_one()

    assert "lost" == (await protocol.settle(old, how)).status
    assert new == await protocol.current()
    assert "done" == (await protocol.settle(new, Complete())).status


@named
async def test_the_queue_goes_on_after_a_stale_end_and_another_stall(
    protocol: ProtocolClient, how: SettleAction
) -> None:
    """After a lost settlement, claims, heartbeats and reaps work, and no claimed job is lost."""
    await protocol.enqueue()
    old = await protocol.stall()
    await protocol.claim_one(await protocol.new_lease(50))
    await protocol.settle(old, how)
    protocol.now += 50
    await protocol.enqueue("b")

    assert ["stalled"] == [reaped.kind for reaped in await protocol.reap()]
    lease = await protocol.new_lease()
    assert {"a", "b"} == {job.id for job in await protocol.claim()}
    assert await protocol.is_renewed(lease)
    assert [] == await protocol.reap()


async def test_a_fence_grows_with_every_claim(protocol: ProtocolClient) -> None:
    """Contract 1: each fence is greater than all earlier fences of the id, also after forget."""
    fences = []
    for how in (RetryLater(delay=0), Release(), Complete()):
        await protocol.enqueue()
        job = await protocol.claim_one()
        fences.append(fence_of(job))
        await protocol.settle(job, how)
    await protocol.storage.forget("q", ["a"], now=protocol.now)
    await protocol.enqueue()
    fences.append(fence_of(await protocol.claim_one()))

    assert sorted(set(fences)) == fences


# -- heartbeats ------------------------------------------------------------------------------------------


async def test_a_heartbeat_keeps_every_job_of_a_lease_and_changes_none(protocol: ProtocolClient) -> None:
    """Contract 3, Leases: one renewal keeps all jobs of the lease."""
    for id in "abc":
        await protocol.enqueue(id)
    lease = await protocol.new_lease(100)
    held = await protocol.claim()
    for _ in range(5):
        protocol.now += 99
        assert await protocol.is_renewed(lease, 100)

    assert [] == await protocol.reap()
    assert held == [await protocol.current(id) for id in "abc"]


@pytest.mark.parametrize("reaped", [False, True])
async def test_an_expired_lease_comes_back_to_life_by_nothing(
    protocol: ProtocolClient, *, reaped: bool
) -> None:
    """Contract 3, Leases: an expired lease is lost for renew, claim and drop, also before a reap."""
    await protocol.enqueue()
    lease = await protocol.new_lease(100)
    run = await protocol.claim_one(lease)
    protocol.now += 100
    if reaped:
        await protocol.reap()
    await protocol.enqueue("b")

    assert await protocol.lease_is_lost(lease)
    assert not await protocol.is_renewed(lease)
    assert {"q": 0} == await protocol.storage.drop(["q"], lease, 10, now=protocol.now)
    assert await protocol.lease_is_lost(lease)
    assert ("lost" if reaped else "done") == (await protocol.settle(run, Complete())).status


async def test_a_stall_is_counted_and_the_job_is_due_at_once(protocol: ProtocolClient) -> None:
    """Contract 3, Leases: a reaped job is due now, and only its stalls grow by 1."""
    await protocol.enqueue()
    await protocol.stall()

    job = await protocol.current()
    assert (START + 1, 1, 0, 0) == (job.run_at, job.stalls, job.retries, job.timeouts)


async def test_one_reap_brings_back_what_many_dead_clients_left(protocol: ProtocolClient) -> None:
    """A reap returns jobs of several expired leases up to its limit, and keeps the jobs of live leases."""
    for number in range(12):
        await protocol.enqueue(f"{number:02}")
        if number < 11:
            await protocol.claim_one(await protocol.new_lease(10 + number))
    await protocol.claim_one(await protocol.new_lease(1000))
    protocol.now += 50

    assert (8, 3, 0) == (
        len(await protocol.reap(8)),
        len(await protocol.reap(8)),
        len(await protocol.reap(8)),
    )


async def test_who_leaves_gives_its_jobs_back_as_they_were(protocol: ProtocolClient) -> None:
    """drop returns each job as it was before the claim, and removes the lease."""
    await protocol.enqueue()
    before = await protocol.current()
    lease = await protocol.new_lease()
    await protocol.claim_one(lease)

    assert {"q": 0} == await protocol.storage.drop(["q"], lease, 10, now=protocol.now)
    assert before == await protocol.current()
    protocol.now += 1_000_000
    assert [] == await protocol.reap()


async def test_what_a_dead_client_held_is_named(protocol: ProtocolClient) -> None:
    await protocol.enqueue()
    run = await protocol.claim_one(await protocol.new_lease(10))
    protocol.now += 10

    assert [ReapedJob("a", fence_of(run), "stalled")] == await protocol.reap()
    assert ["stalled"] == await protocol.event_kinds()


# -- order -----------------------------------------------------------------------------------------------


async def test_jobs_are_claimed_by_priority_then_time_then_place_in_line(protocol: ProtocolClient) -> None:
    """Contract 2: jobs with equal priority and time are first in, first out."""
    await protocol.enqueue("late", run_at=START)
    for id in "zya":
        await protocol.enqueue(id, run_at=5)
    await protocol.enqueue("first", priority=1, run_at=START)

    assert ["first", "z", "y", "a", "late"] == [job.id for job in await protocol.claim()]


async def test_a_client_holds_two_records_of_one_id_at_most(protocol: ProtocolClient) -> None:
    """Contract 1: an id has at most a current job and a successor, and may have an outcome."""
    found = [(await protocol.enqueue()).found, (await protocol.enqueue()).found]
    await protocol.claim_one()
    found += [
        (await protocol.enqueue()).found,
        (await protocol.enqueue()).found,
        (await protocol.enqueue("a", Reject())).found,
    ]

    assert ["nothing", "waiting", "active", "active+blocked", "active+blocked"] == found
    counts = (await protocol.storage.counts(["q"], now=protocol.now))["q"]
    assert (0, 1, 1) == (counts.waiting, counts.active, counts.blocked)


# -- through the client ----------------------------------------------------------------------------------


async def test_a_handler_may_enqueue_its_own_id_again(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job can repeat itself: an enqueue of its own id runs after the current run."""
    set_handler(queue)
    record.queue = queue
    await queue.enqueue({"repeat": 3}, id="a")
    await scripted_handlers.run_until_empty(app)

    assert ["blocked"] * 3 == record.notes
    assert (["a"] * 4, 1) == (record.ran, record.max_active)


async def test_what_happens_to_an_id_is_in_the_log(queue: Queue) -> None:
    """Level `all` logs queued, updated, blocked, promoted and claimed. All levels log ends of attempts."""
    await queue.configure(log_level="all")
    await queue.enqueue(1, id="a")
    await queue.enqueue(2, id="a", on_conflict=Update(data=False))
    async with queue.receive(wait=0) as claims:
        claim = await anext(claims)
        await queue.enqueue(3, id="a")
        await claim.retry(delay=0)
        claim = await anext(claims)
        await queue.enqueue(4, id="a")
        await claim.fail("no")
    await queue.cancel("a")

    kinds = [event.kind for event in await scripted_handlers.read_events(queue, 11)]
    assert ["configured", "queued", "updated", "claimed", "blocked", "retried"] == kinds[:6]
    assert ["claimed", "blocked", "failed", "promoted", "cancelled"] == kinds[6:]
