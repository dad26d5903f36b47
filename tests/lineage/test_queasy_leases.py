"""queasy: who may end a run, heartbeats, what dead clients leave behind, and the order of service."""

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
from tests.lineage import actors
from tests.lineage.actors import play
from tests.lineage.clerk import START, Clerk, fence_of

EVERY: list[SettleAction] = [
    Complete(result=b"1"),
    Fail(error=Error(type="Oops"), handled=True),
    Cancelled(),
    RetryLater(delay=0),
    Release(),
    HandOff(),
]
named = pytest.mark.parametrize("how", EVERY, ids=lambda how: type(how).__name__)


# -- who may end a run -----------------------------------------------------------------------------------


@named
async def test_nothing_settles_what_is_not_active(clerk: Clerk, how: SettleAction) -> None:
    """Contract 3: not active with exactly that fence is `lost`, changes nothing and makes no fail job."""
    await clerk.put("waiting")
    before = await clerk.slot("waiting")
    settlements = [Settlement(id=id, fence=7, action=how) for id in ("waiting", "unknown")]
    answers = await clerk.storage.settle("q", settlements, now=clerk.now)

    assert ["lost", "lost"] == [answer.status for answer in answers]
    assert before == await clerk.slot("waiting")
    assert 0 == (await clerk.storage.counts(["q!fail"], now=clerk.now))["q!fail"].waiting


@named
async def test_a_late_holder_changes_nothing(clerk: Clerk, how: SettleAction) -> None:
    """Promise 2: the run that was swept is no longer its old holder's, whatever he says of it."""
    await clerk.put()
    old = await clerk.stall()
    new = await clerk.take()

    assert "lost" == (await clerk.settle(old, how)).status
    assert new == await clerk.current()
    assert "done" == (await clerk.settle(new, Complete())).status


@named
async def test_the_queue_goes_on_after_a_stale_end_and_another_stall(clerk: Clerk, how: SettleAction) -> None:
    """No record is ever missing: claims, heartbeats and reaps go on, and no claimed job gets lost."""
    await clerk.put()
    old = await clerk.stall()
    await clerk.take(await clerk.lease(50))
    await clerk.settle(old, how)
    clerk.now += 50
    await clerk.put("b")

    assert ["stalled"] == [reaped.kind for reaped in await clerk.reap()]
    lease = await clerk.lease()
    assert {"a", "b"} == {job.id for job in await clerk.claim()}
    assert await clerk.renews(lease)
    assert [] == await clerk.reap()


async def test_a_fence_grows_with_every_claim(clerk: Clerk) -> None:
    """Contract 1: above every earlier fence of the id, also after it was forgotten."""
    fences = []
    for how in (RetryLater(delay=0), Release(), Complete()):
        await clerk.put()
        job = await clerk.take()
        fences.append(fence_of(job))
        await clerk.settle(job, how)
    await clerk.storage.forget("q", ["a"], now=clerk.now)
    await clerk.put()
    fences.append(fence_of(await clerk.take()))

    assert sorted(set(fences)) == fences


# -- heartbeats ------------------------------------------------------------------------------------------


async def test_a_heartbeat_keeps_every_job_of_a_lease_and_changes_none(clerk: Clerk) -> None:
    """Contract 3, Leases: one call whatever the load."""
    for id in "abc":
        await clerk.put(id)
    lease = await clerk.lease(100)
    held = await clerk.claim()
    for _ in range(5):
        clerk.now += 99
        assert await clerk.renews(lease, 100)

    assert [] == await clerk.reap()
    assert held == [await clerk.current(id) for id in "abc"]


@pytest.mark.parametrize("reaped", [False, True])
async def test_an_expired_lease_comes_back_to_life_by_nothing(clerk: Clerk, *, reaped: bool) -> None:
    """Contract 3, Leases: expired = lost, for renew, claim and drop, whether or not anyone reaped."""
    await clerk.put()
    lease = await clerk.lease(100)
    run = await clerk.take(lease)
    clerk.now += 100
    if reaped:
        await clerk.reap()
    await clerk.put("b")

    assert await clerk.claims_nothing(lease)
    assert not await clerk.renews(lease)
    assert {"q": 0} == await clerk.storage.drop(["q"], lease, 10, now=clerk.now)
    assert await clerk.claims_nothing(lease)
    assert ("lost" if reaped else "done") == (await clerk.settle(run, Complete())).status


async def test_a_stall_is_counted_and_the_job_is_due_at_once(clerk: Clerk) -> None:
    """Contract 3, Leases: waiting at now, stalls + 1, and no other count moves."""
    await clerk.put()
    await clerk.stall()

    job = await clerk.current()
    assert (START + 1, 1, 0, 0) == (job.run_at, job.stalls, job.retries, job.timeouts)


async def test_one_reap_brings_back_what_many_dead_clients_left(clerk: Clerk) -> None:
    """Up to its limit, not one client a call; a live client's jobs stay."""
    for number in range(12):
        await clerk.put(f"{number:02}")
        if number < 11:
            await clerk.take(await clerk.lease(10 + number))
    await clerk.take(await clerk.lease(1000))
    clerk.now += 50

    assert (8, 3, 0) == (len(await clerk.reap(8)), len(await clerk.reap(8)), len(await clerk.reap(8)))


async def test_who_leaves_gives_its_jobs_back_as_they_were(clerk: Clerk) -> None:
    """drop: as before the claim, without a count or a pause, and nothing of the client stays behind."""
    await clerk.put()
    before = await clerk.current()
    lease = await clerk.lease()
    await clerk.take(lease)

    assert {"q": 0} == await clerk.storage.drop(["q"], lease, 10, now=clerk.now)
    assert before == await clerk.current()
    clerk.now += 1_000_000
    assert [] == await clerk.reap()


async def test_what_a_dead_client_held_is_named(clerk: Clerk) -> None:
    await clerk.put()
    run = await clerk.take(await clerk.lease(10))
    clerk.now += 10

    assert [ReapedJob("a", fence_of(run), "stalled")] == await clerk.reap()
    assert ["stalled"] == await clerk.kinds()


# -- order -----------------------------------------------------------------------------------------------


async def test_jobs_are_claimed_by_priority_then_time_then_place_in_line(clerk: Clerk) -> None:
    """Contract 2: equals are first in, first out, whatever their ids are."""
    await clerk.put("late", run_at=START)
    for id in "zya":
        await clerk.put(id, run_at=5)
    await clerk.put("first", priority=1, run_at=START)

    assert ["first", "z", "y", "a", "late"] == [job.id for job in await clerk.claim()]


async def test_a_client_holds_two_records_of_one_id_at_most(clerk: Clerk) -> None:
    """Contract 1: nothing, waiting, active, active+blocked; each with or without an outcome."""
    found = [(await clerk.put()).found, (await clerk.put()).found]
    await clerk.take()
    found += [(await clerk.put()).found, (await clerk.put()).found, (await clerk.put("a", Reject())).found]

    assert ["nothing", "waiting", "active", "active+blocked", "active+blocked"] == found
    counts = (await clerk.storage.counts(["q"], now=clerk.now))["q"]
    assert (0, 1, 1) == (counts.waiting, counts.active, counts.blocked)


# -- through the client ----------------------------------------------------------------------------------


async def test_a_handler_may_enqueue_its_own_id_again(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """A job that repeats itself: each enqueue of its own id runs after it."""
    play(queue)
    stage.queue = queue
    await queue.enqueue({"repeat": 3}, id="a")
    await actors.work(app)

    assert ["blocked"] * 3 == stage.notes
    assert (["a"] * 4, 1) == (stage.ran, stage.most)


async def test_what_happens_to_an_id_is_in_the_log(queue: Queue) -> None:
    """At level `all`: queued updated blocked promoted claimed; the ends of attempts at every level."""
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

    kinds = [event.kind for event in await actors.read(queue, 11)]
    assert ["configured", "queued", "updated", "claimed", "blocked", "retried"] == kinds[:6]
    assert ["claimed", "blocked", "failed", "promoted", "cancelled"] == kinds[6:]
