"""Outcomes of plain completed jobs in the short form: size, fields, counts and expiry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from dibs.client.options.arguments import new_id
from dibs.model.job import JobData, NewJob, Outcome, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, JobPatch, Reject, SettingsPatch, Settlement
from dibs.storage.redis import RedisStorage, open_url
from dibs_conformance.servers import RedisServer

NOW = 1_000_000


def request(id: str, priority: int = 0) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"[]", priority=priority)))


@pytest.fixture
async def manual(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStorage]:
    async with open_url(redis_server.url, prefix=prefix, clock="manual") as storage:
        yield storage


async def complete(
    storage: RedisStorage,
    requests: Sequence[EnqueueRequest],
    *,
    result: bytes | None = None,
    now: int | None = None,
) -> None:
    """Enqueue, claim and complete jobs."""
    await storage.enqueue("q", requests, now=now)
    lease = (await storage.grant(["q"], 60_000, "me", now=now)).lease
    jobs = (await storage.claim("q", lease, len(requests), now=now)).jobs
    ends = [
        Settlement(id=job.id, fence=job.run.fence, action=Complete(result=result))
        for job in jobs
        if job.run is not None
    ]
    assert ["done"] * len(requests) == [one.status for one in await storage.settle("q", ends, now=now)]


async def test_a_kept_outcome_takes_at_most_150_bytes(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    """The keys with outcomes and their ends, for generated ids. The log is not among them."""
    count = 8000
    for _ in range(0, count, 200):
        await complete(storage, [request(new_id()) for _ in range(200)])
    names = [
        f"{prefix}:{{q}}:{name}" for name in ("outcomes", "ends:3600000", "classes", "class_ends", "ends")
    ]
    sizes = [redis_server.execute("MEMORY", "USAGE", name, "SAMPLES", "0") for name in names]

    assert 0 == redis_server.execute("EXISTS", f"{prefix}:{{q}}:completed")
    assert sum(map(int, sizes)) <= 150 * count
    assert count == (await storage.counts(["q"]))["q"].completed


async def outcome_of(
    storage: RedisStorage, priority: int, result: bytes | None, patch: SettingsPatch
) -> Outcome:
    await storage.configure("q", patch)
    await complete(storage, [request("a", priority)], result=result, now=NOW)
    (slot,) = await storage.get("q", ["a"])
    assert slot.outcome is not None
    await storage.forget("q", ["a"])
    return replace(slot.outcome, fence=0, first=0, revision=0)


@pytest.mark.parametrize("priority", [0, -7])
@pytest.mark.parametrize("result", [None, b"", b"1"])
@pytest.mark.parametrize("age", [None, 50])
async def test_the_short_form_has_the_fields_of_the_general_form(
    manual: RedisStorage, priority: int, result: bytes | None, age: int | None
) -> None:
    """With log_results the general path writes the outcome."""
    patch = SettingsPatch(retention=OutcomeRetention(completed=age))

    short = await outcome_of(manual, priority, result, replace(patch, log_results=0))
    assert short == await outcome_of(manual, priority, result, replace(patch, log_results=4096))


async def test_expired_outcomes_are_not_counted_and_prune_removes_them(
    manual: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    await manual.configure("q", SettingsPatch(retention=OutcomeRetention(completed=100), log_level="off"))
    for step in range(3):
        await complete(manual, [request(f"{step}-{n}") for n in range(4)], now=NOW + step)

    counted = [(await manual.counts(["q"], now=at))["q"].completed for at in (NOW + 99, NOW + 100, NOW + 101)]
    assert [12, 8, 4] == counted
    pruned = [await manual.prune("q", limit, now=NOW + 101) for limit in (3, 3, 3)]
    assert [(3, True), (3, True), (2, False)] == [(one.outcomes, one.more) for one in pruned]
    assert 4 == (await manual.counts(["q"]))["q"].completed
    assert 4 == (await manual.prune("q", 100, now=NOW + 102)).outcomes
    names = [f"{prefix}:{{q}}:{name}" for name in ("outcomes", "ends", "ends:100", "class_ends")]
    assert 0 == redis_server.execute("EXISTS", *names)


async def test_an_id_that_runs_again_leaves_no_entries_in_the_index(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    """The second outcome of an id has the general form and a place in the ordered set."""
    for _ in range(4):
        await complete(storage, [request("a")])

    assert 1 == (await storage.counts(["q"]))["q"].completed
    assert 0 == redis_server.execute("EXISTS", f"{prefix}:{{q}}:ends:3600000")
    assert 1 == redis_server.execute("ZCARD", f"{prefix}:{{q}}:completed")


async def test_other_verbs_read_change_and_remove_short_outcomes(storage: RedisStorage) -> None:
    ids = ["amended", "forgotten", "kept", "rejected"]
    await complete(storage, [request(id) for id in ids], result=b"1")
    rejected = EnqueueRequest(job=NewJob(id="rejected"), on_conflict=Reject(), want_outcome=True)

    (answer,) = await storage.enqueue("q", [rejected])
    assert answer.status == "completed"
    assert answer.outcome is not None
    assert answer.outcome.result == b"1"
    assert [True] == await storage.forget("q", ["forgotten"])
    assert "amended" == await storage.amend("q", "amended", JobPatch(attributes={"a": b"1"}))
    assert ["completed"] == await storage.cancel("q", ["kept"])
    assert ["completed"] == await storage.retry_failed("q", ["kept"])
    page = await storage.list("q", "completed")
    assert ["amended", "kept", "rejected"] == [id for id, _ in page.items]
    assert 3 == (await storage.counts(["q"]))["q"].completed


async def test_a_plain_completion_needs_the_fence_of_its_claim(storage: RedisStorage) -> None:
    """This holds with and without a result. A repeat is answered as long as the outcome is kept."""
    await storage.enqueue("q", [request("a"), request("b")])
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    claimed = (await storage.claim("q", lease, 2)).jobs
    fences = {job.id: job.run.fence for job in claimed if job.run is not None}
    for action in (Complete(), Complete(result=b"1")):
        late = [Settlement(id=id, fence=fence - 1, action=action) for id, fence in fences.items()]
        assert ["lost"] * 2 == [one.status for one in await storage.settle("q", late)]
    ends = [Settlement(id=id, fence=fence, action=Complete()) for id, fence in fences.items()]

    assert ["done"] * 4 == [one.status for one in await storage.settle("q", [*ends, *ends])]


@pytest.mark.parametrize("age", [None, 0, 50])
async def test_the_end_of_a_scheduled_job_is_the_same_on_both_paths(
    manual: RedisStorage, age: int | None
) -> None:
    """The record of such a job has the general form. With log_results the general path ends it."""
    outcomes = []
    for queue, log_results, at in (("quick", 0, NOW), ("general", 4096, NOW + 100)):
        patch = SettingsPatch(retention=OutcomeRetention(completed=age), log_results=log_results)
        await manual.configure(queue, patch)
        await manual.enqueue(queue, [EnqueueRequest(job=NewJob(id="a", delay=5))], now=at)
        lease = (await manual.grant([queue], 60_000, "me", now=at)).lease
        (job,) = (await manual.claim(queue, lease, 1, now=at + 5)).jobs
        assert job.run is not None
        end = Settlement(id="a", fence=job.run.fence, action=Complete(result=b"1"))
        assert ["done"] == [one.status for one in await manual.settle(queue, [end])]
        outcome = (await manual.get(queue, ["a"]))[0].outcome
        assert (outcome is None) == (age == 0)
        same = {"fence": 0, "first": 0, "revision": 0, "enqueued_at": 0, "run_at": 0, "claimed_at": 0}
        outcomes.append(outcome and replace(outcome, ended_at=0, expires_at=0, **same))

    assert outcomes[0] == outcomes[1]
