"""The fast path of a completion of one job writes and returns the same as the general path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    Release,
    SettingsPatch,
    Settlement,
)
from dibs.model.results import SettleResult
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer
from tests.storage.redis.lua.single_steps import FAST, GENERAL, contents, count_commands

#: The commands of one settlement with its claim in their script, and of the script itself.
COMMANDS = 26
PLAIN = JobData(payload=b"[1]")
RETENTIONS = {
    "none": OutcomeRetention(completed=0),
    "age": OutcomeRetention(completed=50_000),
    "for ever": OutcomeRetention(completed=None),
    "of the queue": OutcomeRetention(failed=7),
    "payload": OutcomeRetention(completed=50_000, keep_payload=("completed",)),
}
CLASSES = {"classes", "class_ends"}
#: A settlement of a job that does not exist. It changes nothing, and leads to the general path.
UNKNOWN = Settlement(id="unknown", fence=1, action=Complete())


async def claim_new(storage: RedisStorage, queue: str, lease: str, id: str, data: JobData = PLAIN) -> Job:
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id, data=data))])
    (job,) = (await storage.claim(queue, lease, 2)).jobs
    return job


async def settle(
    storage: RedisStorage, queue: str, lease: str, job: Job, action: Any = None, *, claims: bool = True
) -> SettleResult:
    """Settle a run in a step of its own; in the queue GENERAL, with a settlement more."""
    assert job.run is not None
    one = Settlement(id=job.id, fence=job.run.fence, action=action or Complete())
    batch: Sequence[Settlement] = [one, UNKNOWN] if queue == GENERAL else [one]
    if not claims:
        return (await storage.settle(queue, batch))[0]
    both = await storage.settle_and_claim(queue, batch, lease, 100)
    assert ((), None, False) == (both.claim.jobs, both.claim.next_due, both.claim.lost)
    return both.settled[0]


async def outcomes(storage: RedisStorage, ids: Sequence[str]) -> list[list[Any]]:
    """Return the outcomes of ids in both queues, without what differs between two runs."""

    def comparable(outcome: Any) -> Any:
        if outcome is None:
            return None
        kept = None if outcome.expires_at is None else outcome.expires_at - outcome.ended_at
        assert outcome.claimed_at <= outcome.ended_at
        assert outcome.first == outcome.revision < outcome.fence
        times = dict.fromkeys(("ended_at", "claimed_at", "enqueued_at", "run_at", "first", "revision"), 0)
        return replace(outcome, fence=0, expires_at=kept, **times)

    return [[comparable(slot.outcome) for slot in await storage.get(queue, ids)] for queue in (FAST, GENERAL)]


async def events(storage: RedisStorage, queue: str) -> list[Any]:
    found = (await storage.events(queue)).events
    return [(one.kind, one.id, one.attempt, one.holder, one.result) for _, one in found]


@pytest.mark.parametrize(
    ("claims", "result"),
    [(True, None), (True, b'"done"'), (False, b""), (False, b"1" * 2000)],
    ids=["claim", "claim and result", "empty result", "long result"],
)
@pytest.mark.parametrize("own", [None, *RETENTIONS], ids=str)
@pytest.mark.parametrize("of_queue", ["none", "age", "for ever"])
async def test_a_completion_is_the_same_on_both_paths(
    storage: RedisStorage, prefix: str, *, claims: bool, result: bytes | None, own: str | None, of_queue: str
) -> None:
    data = replace(PLAIN, retention=None if own is None else RETENTIONS[own])
    lease = (await storage.grant([FAST, GENERAL], 60_000, "me")).lease
    messages = []
    since: Mapping[str, str] = {}
    for queue in (FAST, GENERAL):
        await storage.configure(queue, SettingsPatch(retention=RETENTIONS[of_queue]))
        await storage.wait([queue], for_="ids", ids=["2"], timeout=0.01)
        for id in ("1", "2"):  # the first outcome of a class takes the general path
            job = await claim_new(storage, queue, lease, id, data)
            since = (await storage.wait([queue], for_="ids", ids=[id], timeout=0.0)).since
            assert (
                "done"
                == (await settle(storage, queue, lease, job, Complete(result=result), claims=claims)).status
            )
        woken = await storage.wait([queue], for_="ids", ids=["2"], since=since, timeout=5.0)
        messages.append((woken.woken, woken.ended, set(woken.outcomes)))

    fast, general = await outcomes(storage, ["1", "2"])
    assert fast == general
    assert messages[0] == messages[1]
    assert await events(storage, FAST) == await events(storage, GENERAL)
    # The general path also notes a class for an outcome that does not need it.
    keys = [set(await contents(storage, prefix, queue)) - CLASSES for queue in (FAST, GENERAL)]
    assert keys[0] == keys[1]
    assert (await storage.counts([FAST]))[FAST] == (await storage.counts([GENERAL]))[GENERAL]


async def test_a_completion_runs_few_commands(storage: RedisStorage, redis_server: RedisServer) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await settle(storage, "q", lease, await claim_new(storage, "q", lease, "first"))
    job = await claim_new(storage, "q", lease, "second")
    with count_commands(redis_server) as count:
        await settle(storage, "q", lease, job)

    assert count.number <= COMMANDS


@pytest.mark.parametrize(
    "data",
    [
        replace(PLAIN, priority=-7),
        replace(PLAIN, attributes={"size": b"7"}),
        replace(PLAIN, overrides=Overrides(max_retries=3), retention=RETENTIONS["age"]),
        replace(PLAIN, key="tenant"),
    ],
    ids=["priority", "attributes", "overrides", "key"],
)
async def test_other_data_ends_the_same_on_both_paths(storage: RedisStorage, data: JobData) -> None:
    lease = (await storage.grant([FAST, GENERAL], 60_000, "me")).lease
    for queue in (FAST, GENERAL):
        for id in ("1", "2"):
            await settle(storage, queue, lease, await claim_new(storage, queue, lease, id, data))

    fast, general = await outcomes(storage, ["1", "2"])
    assert fast == general
    assert await events(storage, FAST) == await events(storage, GENERAL)


@pytest.mark.parametrize(
    "action",
    [
        Fail(error=Error(type="E")),
        Cancelled(),
        Release(),
        Complete(retention=OutcomeRetention(completed=60_000)),
        Complete(then=(FollowUp(queue=FAST, job=NewJob(id="next")),)),
    ],
    ids=["fail", "cancelled", "release", "retention", "follow-up"],
)
async def test_other_settlements_take_the_general_path(storage: RedisStorage, action: Any) -> None:
    lease = (await storage.grant([FAST], 60_000, "me")).lease
    job = await claim_new(storage, FAST, lease, "a")
    assert job.run is not None
    (answer,) = await storage.settle(FAST, [Settlement(id="a", fence=job.run.fence, action=action)])

    assert answer.status in ("done", "returned")
    (slot,) = await storage.get(FAST, ["a"])
    assert (slot.outcome is None) == isinstance(action, Release)


@pytest.mark.parametrize(
    "patch",
    [SettingsPatch(max_active=1), SettingsPatch(log_results=100), SettingsPatch(log_level="off")],
    ids=["max_active", "log_results", "log off"],
)
async def test_settings_are_kept_to(storage: RedisStorage, patch: SettingsPatch) -> None:
    lease = (await storage.grant([FAST, GENERAL], 60_000, "me")).lease
    for queue in (FAST, GENERAL):
        await storage.configure(queue, patch)
        for id in ("1", "2"):
            job = await claim_new(storage, queue, lease, id)
            await settle(storage, queue, lease, job, Complete(result=b"5"))

    fast, general = await outcomes(storage, ["1", "2"])
    assert fast == general
    assert await events(storage, FAST) == await events(storage, GENERAL)


async def test_a_claim_behind_a_completion_finds_waiting_jobs(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    job = await claim_new(storage, "q", lease, "a")
    await storage.enqueue(
        "q", [EnqueueRequest(job=NewJob(id="b")), EnqueueRequest(job=NewJob(id="c", delay=50_000))]
    )
    assert job.run is not None
    both = await storage.settle_and_claim(
        "q", [Settlement(id="a", fence=job.run.fence, action=Complete())], lease, 5
    )

    assert (["b"], "done") == ([one.id for one in both.claim.jobs], both.settled[0].status)
    assert both.claim.next_due is not None


async def test_a_claim_behind_a_completion_needs_its_lease(storage: RedisStorage) -> None:
    lease, other = [(await storage.grant(["q"], 60_000, "me")).lease for _ in range(2)]
    job = await claim_new(storage, "q", lease, "a")
    await storage.drop(["q"], other, 10)
    assert job.run is not None
    both = await storage.settle_and_claim(
        "q", [Settlement(id="a", fence=job.run.fence, action=Complete())], other, 5
    )

    assert ("done", True) == (both.settled[0].status, both.claim.lost)


async def test_a_completion_needs_its_fence_and_promotes_the_successor(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    job = await claim_new(storage, "q", lease, "a")
    assert job.run is not None
    late = Settlement(id="a", fence=job.run.fence - 1, action=Complete())
    assert ["lost"] == [one.status for one in await storage.settle("q", [late])]
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
    await storage.settle("q", [replace(late, fence=job.run.fence)])

    (slot,) = await storage.get("q", ["a"])
    assert slot.outcome is not None
    assert slot.current is not None
    assert slot.current.run is None


async def test_a_repeated_completion_is_answered_by_the_kept_outcome(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    for id in ("first", "second"):
        job = await claim_new(storage, "q", lease, id)
        assert ["done", "done"] == [(await settle(storage, "q", lease, job)).status for _ in range(2)]


async def test_an_id_that_runs_again_has_its_latest_outcome(storage: RedisStorage) -> None:
    lease = (await storage.grant([FAST, GENERAL], 60_000, "me")).lease
    for queue in (FAST, GENERAL):
        for n in range(3):
            job = await claim_new(storage, queue, lease, "a")
            await settle(storage, queue, lease, job, Complete(result=b"%d" % n))

    fast, general = await outcomes(storage, ["a"])
    assert fast == general
    assert b"2" == fast[0].result
    assert 1 == (await storage.counts([FAST]))[FAST].completed
