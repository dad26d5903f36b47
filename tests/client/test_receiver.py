"""Receivers: claims without a worker, under a lease that is renewed in the background."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, LeaseLost, NotRunning, OutcomeUnknown, PermanentError, Queue, Rate, Refused
from dibs.model.job import JobData, NewJob
from dibs.model.overrides import Overrides
from dibs.model.requests import EnqueueRequest
from tests.client import handlers
from tests.client.manual_claims import claimed


async def state(queue: Queue, id: str = "a") -> str:
    status = await queue.get(id)
    return status.state if status else "nothing"


async def test_a_claim_says_what_it_holds(queue: Queue) -> None:
    await queue.enqueue([1], id="a", attributes={"k": "v"})
    async with claimed(queue) as claim:
        assert (claim.queue, claim.id, claim.data, claim.attributes) == ("q", "a", [1], {"k": "v"})
        assert (claim.attempt, claim.lost, claim.cancelled) == (1, False, False)
        assert claim.fence > 0


async def test_leaving_releases_the_rest_without_a_mark(queue: Queue) -> None:
    await queue.enqueue_many(queue.bind(n, id=str(n)) for n in range(5))
    async with queue.receive(max_jobs=5, wait=0) as claims:
        await (await anext(claims)).complete()

    counts = await queue.counts()
    assert (counts.completed, counts.waiting, counts.active) == (1, 4, 0)
    async with claimed(queue) as claim:
        assert (claim.attempt, claim.stalls) == (1, 0)


async def test_leaving_releases_each_job_of_one_claim(any_queue: Queue) -> None:
    """The jobs of one claim may share a fence, and each of them is held."""
    await any_queue.enqueue_many(any_queue.bind(n, id=str(n)) for n in range(3))
    async with any_queue.receive(max_jobs=3, wait=0) as claims:
        held = [await anext(claims) for _ in range(3)]
        assert (await any_queue.counts()).active == 3

    counts = await any_queue.counts()
    assert (counts.waiting, counts.active) == (3, 0)
    assert {"0", "1", "2"} == {claim.id for claim in held}


async def test_an_exception_inside_releases_too(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    with pytest.raises(PermanentError):
        async with claimed(queue):
            raise PermanentError

    assert await state(queue) == "waiting"


async def test_a_claim_that_spent_nothing_gives_its_start_back(any_queue: Queue) -> None:
    """One start an hour: each job is claimed at once all the same, also after it came back."""
    await any_queue.configure(rate=Rate(500, per="1h", unit=500))
    await any_queue.enqueue_many(any_queue.bind(n, id=str(n)) for n in range(2))
    ends = []
    async with any_queue.receive(wait=0) as claims:
        async for claim in claims:
            claim.spent(0, unit=500)
            ends.append(claim.id)
            await (claim.release() if claim.attempt == 1 and len(ends) == 1 else claim.complete())
        await any_queue.enqueue(2, id="2")
        claim = await anext(claims)
        claim.spent(250, unit=500)
        claim.spent(250, unit=500)
        await claim.complete()
        await any_queue.enqueue(3, id="3")
        with pytest.raises(StopAsyncIteration):
            await anext(claims)

    assert ["0", "0", "1"] == sorted(ends)


async def test_at_most_max_jobs_are_held(queue: Queue) -> None:
    await queue.enqueue_many(range(5))
    async with queue.receive(max_jobs=2, wait=0) as claims:
        held = [claim async for claim in claims]
        assert len(held) == 2

        await held[0].complete()
        assert len([claim async for claim in claims]) == 1


async def test_a_settled_claim_makes_room_for_who_waits(queue: Queue) -> None:
    await queue.enqueue_many(range(2))
    async with queue.receive(max_jobs=1) as claims:
        first = await anext(claims)
        second = asyncio.ensure_future(anext(claims))
        await asyncio.sleep(0)
        await first.complete()

        assert (await second).data == 1


async def test_a_new_job_wakes_who_waits_for_one(queue: Queue) -> None:
    async with queue.receive() as claims:
        coming = asyncio.ensure_future(anext(claims))
        await asyncio.sleep(0)
        await queue.enqueue("hello")

        assert (await coming).data == "hello"


async def test_a_retry_waits_until_its_time_with_its_error(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with claimed(queue) as claim:
        assert await claim.retry(at, error=ValueError("later")) == "returned"

    status = await queue.get("a")
    assert status is not None
    assert (status.state, status.run_at, status.retries) == ("waiting", at, 1)
    assert status.error is not None
    assert status.error.message == "later"


async def test_a_retry_takes_one_time(queue: Queue) -> None:
    await queue.enqueue(1)
    async with claimed(queue) as claim:
        with pytest.raises(Refused):
            await claim.retry(datetime.now(UTC), delay=5)
        with pytest.raises(Refused):
            await claim.retry(datetime(2030, 1, 1))  # noqa: DTZ001 - that is the case
        assert await claim.retry(delay=0) == "returned"


@pytest.mark.parametrize("field", ["until", "delay"])
async def test_a_release_may_wait_until_a_time_and_leaves_no_count(queue: Queue, field: str) -> None:
    await queue.enqueue(1, id="a")
    begun = datetime.now(UTC)
    async with claimed(queue) as claim:
        times = {"until": begun + timedelta(hours=1)} if field == "until" else {"delay": "1h"}
        assert await claim.release(**times) == "returned"

    status = await queue.get("a")
    assert status is not None
    assert (status.state, status.attempts, status.retries) == ("waiting", 0, 0)
    assert status.run_at is not None
    assert timedelta(minutes=59) < status.run_at - begun < timedelta(minutes=61)


async def test_a_release_takes_one_time(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        for bad in (
            {"until": datetime.now(UTC), "delay": 5},
            {"until": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the case
            {"delay": -1},
            {"delay": "soon"},
        ):
            with pytest.raises(Refused):
                await claim.release(**bad)
        assert await claim.release() == "returned"

    assert await state(queue) == "waiting"


def test_a_blocking_claim_is_released_until_a_time(storage_url: str) -> None:
    queue = Dibs(storage_url).sync.queue("q")
    queue.enqueue(1, id="a")
    with queue.receive(wait=0) as claims:
        assert next(claims).release(delay=3600) == "returned"

    assert queue.counts().scheduled == 1


async def test_jobs_past_their_deadline_are_cancelled_and_not_yielded(queue: Queue, app: Dibs) -> None:
    late = JobData(payload=b"0", overrides=Overrides(start_by=1))
    jobs = [NewJob(id=f"late {n}", data=late) for n in range(5)]
    await app.storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])
    await queue.enqueue(1, id="a", start_by=3600)
    async with queue.receive(max_jobs=2, wait=0) as claims:
        async for claim in claims:
            await claim.complete()
            assert claim.id == "a"

    counts = await queue.counts()
    assert (counts.cancelled, counts.completed) == (5, 1)
    [slot] = await app.storage.get("q", ["late 0"])
    assert slot.outcome is not None
    assert slot.outcome.error is not None
    assert slot.outcome.error.type == "StartDeadlinePassed"


async def test_a_claim_of_someone_else_is_lost(queue: Queue) -> None:
    """Contract 4, promise 2: the storage refuses the write of a late holder."""
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        await queue.forget("a")

        for late in (claim.complete(), claim.fail("x"), claim.retry(), claim.release(), claim.progress(1)):
            with pytest.raises(LeaseLost, match="q/a"):
                await late
        assert claim.lost


async def test_a_claim_after_its_receiver_is_lost(queue: Queue) -> None:
    await queue.enqueue(1)
    async with claimed(queue) as claim:
        pass

    with pytest.raises(LeaseLost):
        await claim.complete()
    with pytest.raises(LeaseLost):
        await claim.extend(5)


async def test_a_follow_up_is_enqueued_with_the_end(queue: Queue, app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    await queue.enqueue(1)
    async with claimed(queue) as claim:
        await claim.complete(then=[task.options(id="next").bind("a"), queue.bind(2)])

    assert (await state(task.queue, "next"), (await queue.counts()).waiting) == ("waiting", 1)


async def test_a_bad_follow_up_leaves_the_claim(queue: Queue) -> None:
    await queue.enqueue(1)
    async with claimed(queue) as claim:
        for bad in (queue.bind(float("nan")), queue.bind(1, request_key="k"), queue.bind(1, priority=5000)):
            with pytest.raises(Refused):
                await claim.complete(then=[bad])
        await claim.complete()


async def test_a_failure_is_handled_if_the_app_declares_a_handler(queue: Queue, app: Dibs) -> None:
    queue.on_failure(handlers.alert)
    await queue.enqueue({"n": 1}, id="a")
    async with claimed(queue) as claim:
        await claim.fail(ValueError("no"))

    assert (await app.queue("q!fail").counts()).waiting == 1


async def test_the_heart_keeps_the_lease_and_brings_news(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with queue.receive(lease=0.6, wait=0) as claims:
        claim = await anext(claims)
        await queue.cancel("a", running=True)
        begun = asyncio.get_running_loop().time()
        # Real time on purpose: the test needs the time at which the lease would have expired.
        while not claim.cancelled or asyncio.get_running_loop().time() < begun + 0.8:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

        assert not claim.lost
        await claim.complete("in time")


async def test_a_lease_that_ended_is_replaced(queue: Queue, app: Dibs) -> None:
    await queue.enqueue_many([queue.bind(1, id="a"), queue.bind(2, id="b")])
    async with queue.receive(max_jobs=1, wait=0) as claims:
        first = await anext(claims)
        await app.storage.drop(["q"], claims._leases[0].lease, 100)
        await claims._renew_lease(app.storage, claims._leases[0])

        assert first.lost
        second = await anext(claims)
        await second.complete()


async def test_waiting_claims_of_a_lease_that_ended_are_claimed_again(queue: Queue, app: Dibs) -> None:
    await queue.enqueue_many(range(2))
    async with queue.receive(max_jobs=2, wait=0) as claims:
        first = await anext(claims)
        await app.storage.drop(["q"], claims._leases[0].lease, 100)
        await claims._renew_lease(app.storage, claims._leases[0])
        again = [await anext(claims), await anext(claims)]

        assert (first.lost, [claim.lost for claim in again]) == (True, [False, False])
        for claim in again:
            await claim.complete()


async def test_after_a_lost_reply_no_more_is_claimed_under_that_lease(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract 4, promise 7: the claim took jobs that the receiver does not know, so it drops that lease."""
    claim = app.storage.claim
    leases: list[str] = []

    async def losing(queue: str, lease: str, limit: int) -> Any:
        leases.append(lease)
        answer = await claim(queue, lease, limit)
        if len(leases) == 2:
            raise OutcomeUnknown
        return answer

    await queue.enqueue("known", priority=1)
    async with queue.receive(max_jobs=1, wait=0) as claims:
        monkeypatch.setattr(app.storage, "claim", losing)
        known = await anext(claims)
        await queue.enqueue("taken, but nobody knows")
        claims._max_jobs = 2
        with pytest.raises(StopAsyncIteration):
            await anext(claims)
        old = next(tenure for tenure in claims._leases if tenure.lease == leases[0])

        await claims._renew_lease(app.storage, old)
        assert old in claims._leases, "what is known there has not settled"
        await known.complete()
        await claims._renew_lease(app.storage, old)
        assert (await anext(claims)).data == "taken, but nobody knows"
        assert leases[0] == leases[1] != leases[2]


async def test_without_its_block_nothing_is_claimed(queue: Queue) -> None:
    """Without the block the lease has no heartbeat, and its claims would not be released."""
    await queue.enqueue(1)

    with pytest.raises(NotRunning, match="async with"):
        await anext(queue.receive())
    assert (await queue.counts()).waiting == 1


async def test_a_block_may_outlive_its_app(storage_url: str) -> None:
    app = Dibs(storage_url)
    await app.open()
    async with app.queue("q").receive() as claims:
        await app.close()

        with pytest.raises(NotRunning):
            await anext(claims)


async def abandon(queue: Queue) -> None:
    """Claim a job and never renew the lease, like a dead holder. Return when the lease has expired."""
    storage = await queue._client.storage()
    lease = (await storage.grant([queue.name], 100, "dead")).lease
    while not (await storage.claim(queue.name, lease, 1)).jobs:
        lease = (await storage.grant([queue.name], 100, "dead")).lease
    while not (await storage.claim(queue.name, lease, 1)).lost:  # noqa: ASYNC110 - only the clock ends a lease
        await asyncio.sleep(0.02)


async def test_a_receiver_that_does_not_wait_brings_back_the_job_of_a_dead_holder(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")
    await abandon(any_queue)

    async with any_queue.receive(wait=0) as claims:
        assert [(claim.id, claim.stalls) async for claim in claims] == [("a", 1)]


async def test_jobs_that_arrive_one_by_one_cost_no_reap_each(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, reap = [], app.storage.reap

    async def counting(name: str, limit: int) -> Any:
        calls.append(name)
        return await reap(name, limit)

    monkeypatch.setattr(app.storage, "reap", counting)
    async with queue.receive() as claims:
        for number in range(5):
            coming = asyncio.ensure_future(anext(claims))
            await asyncio.sleep(0)
            await queue.enqueue(number)
            await (await coming).complete()

    assert len(calls) <= 1


# -- Leases that jobs ask for, in a receiver beside other jobs ---------------------------------------


@pytest.mark.long
async def test_a_short_lease_of_a_job_never_shortens_that_of_its_neighbours(queue: Queue) -> None:
    """Contract 3, Leases: the holder renews for the longest of its own length and those of the jobs."""
    await queue.enqueue_many([queue.bind(1, lease=0.05), queue.bind(2)])
    async with queue.receive(max_jobs=2, lease=1.5, wait=0) as claims:
        held = [await anext(claims), await anext(claims)]
        # Real time on purpose: the receiver's lease would have ended without its renewals.
        await asyncio.sleep(2.2)

        assert [False, False] == [claim.lost for claim in held]
        for claim in held:
            await claim.complete()


async def test_a_lease_of_half_seconds_is_neither_rounded_nor_that_of_the_receiver(
    queue: Queue, app: Dibs
) -> None:
    """Contract 3, Leases. Programma made 2 s of 1.5, and 30 s of none."""
    await queue.enqueue(1, lease=1.5)
    async with queue.receive(lease=0.2, wait=0) as claims:
        claim = await anext(claims)
        [slot] = await app.storage.get("q", [claim.id])
        # A renewal never shortens a lease, so this one shows its end.
        renewed = (await app.storage.renew(["q"], claim._lease, 1))["q"]
        await claim.complete()

    assert slot.current is not None
    assert slot.current.run is not None
    assert 1500 == claim.lease_ms
    assert renewed.expires_at >= slot.current.run.claimed_at + 1500


async def test_a_longer_lease_of_a_job_counts_from_its_claim(queue: Queue, app: Dibs) -> None:
    """Contract 3, Leases: it does not begin with the first heartbeat."""
    await queue.enqueue(1, lease=3600)
    async with queue.receive(lease=0.2, wait=0) as claims:
        claim = await anext(claims)
        assert claims._heartbeat is not None
        claims._heartbeat.cancel()
        later = (await app.storage.grant(["q"], 200, "later")).lease
        while not (await app.storage.claim("q", later, 1)).lost:  # noqa: ASYNC110 - only the clock ends a lease
            await asyncio.sleep(0.02)

        assert [] == list(await app.storage.reap("q", 10))
        await claim.complete()
