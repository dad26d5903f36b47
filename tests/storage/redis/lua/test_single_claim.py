"""The fast path of a claim of a few jobs writes and returns the same as the general path."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dibs.errors import StorageDamaged
from dibs.model.job import Job, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import EnqueueRequest, SettingsPatch, StartRate
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer
from tests.storage.redis.lua.single_steps import FAST, GENERAL, contents, count_commands

#: The smallest limit of a claim that takes the general path.
LARGE = 17
#: The commands of one claim of one job in its script, and of the script itself.
COMMANDS = 22
DATA = [
    JobData(payload=b"[1]"),
    JobData(payload=b"[1]", priority=-7),
    JobData(payload=b"[1]", retention=OutcomeRetention(failed=5), overrides=Overrides(max_retries=3)),
    JobData(payload=b"", attributes={"size": b"7"}),
]


async def enqueue(storage: RedisStorage, queue: str, number: int, data: JobData = DATA[0]) -> None:
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=f"{n}", data=data)) for n in range(number)])


def without_numbers(job: Job) -> Job:
    assert job.run is not None
    assert job.seq == job.first == job.revision < job.run.fence
    assert job.run_at == job.enqueued_at <= job.run.claimed_at
    return replace(
        job, seq=0, first=0, revision=0, run_at=0, enqueued_at=0, run=replace(job.run, fence=0, claimed_at=0)
    )


@pytest.mark.parametrize("data", DATA, ids=["plain", "priority", "retention", "attributes"])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_claim_is_the_same_on_both_paths(
    storage: RedisStorage, prefix: str, data: JobData, number: int
) -> None:
    """The claim has the limit 2, in queues of one, two and three jobs."""
    lease = (await storage.grant([FAST, GENERAL], 60_000, "me")).lease
    claims = {}
    for queue in (FAST, GENERAL):
        await enqueue(storage, queue, number, data)
        if queue == GENERAL:  # a scheduled job of another priority leads to the general path
            late = NewJob(id="late", data=JobData(priority=9), delay=60_000)
            await storage.enqueue(queue, [EnqueueRequest(job=late)])
        claims[queue] = await storage.claim(queue, lease, 2)
        if queue == GENERAL:
            await storage.cancel(queue, ["late"])
            await storage.forget(queue, ["late"])

    fast, general = claims[FAST].jobs, claims[GENERAL].jobs
    assert [f"{n}" for n in range(min(number, 2))] == [job.id for job in fast]
    assert [without_numbers(job) for job in fast] == [without_numbers(job) for job in general]
    stored = await storage.get(FAST, [job.id for job in fast])
    assert [*fast] == [slot.current for slot in stored]
    assert None is claims[FAST].next_due
    ignored = ("meta", "claim_tokens", "log", "outcomes", "completed", "cancelled", "priorities", "due:0")
    one, other = [await contents(storage, prefix, queue) for queue in (FAST, GENERAL)]
    assert {key: one[key] for key in one if key not in ignored} == {
        key: other[key] for key in other if key not in ignored
    }
    assert one.get("priorities") == other.get("priorities")


async def test_a_claim_of_one_job_runs_few_commands(storage: RedisStorage, redis_server: RedisServer) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await enqueue(storage, "q", 1)
    with count_commands(redis_server) as count:
        assert 1 == len((await storage.claim("q", lease, 2)).jobs)

    assert count.number <= COMMANDS


async def test_a_claim_that_reaches_its_limit_releases_the_next_blocking_claim(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await enqueue(storage, "q", 2)
    await storage.claim_blocking("q", lease, 1, claim_id="a", timeout=5.0)
    assert 1 == redis_server.execute("LLEN", f"{prefix}:{{q}}:claim_tokens")

    assert 1 == len((await storage.claim_blocking("q", lease, 1, claim_id="b", timeout=5.0)).jobs)
    assert 0 == redis_server.execute("LLEN", f"{prefix}:{{q}}:claim_tokens")


@pytest.mark.parametrize(
    "patch",
    [
        SettingsPatch(paused=True),
        SettingsPatch(max_active=1),
        SettingsPatch(rate=StartRate(starts=1, per=60_000, burst=1)),
        SettingsPatch(log_level="all"),
    ],
    ids=["paused", "max_active", "rate", "log_level"],
)
async def test_settings_lead_to_the_general_path(storage: RedisStorage, patch: SettingsPatch) -> None:
    lease = (await storage.grant([FAST, GENERAL], 60_000, "me")).lease
    claimed = []
    for queue, limit in ((FAST, LARGE - 1), (GENERAL, LARGE)):
        await storage.configure(queue, patch)
        await enqueue(storage, queue, 3)
        claimed.append([job.id for job in (await storage.claim(queue, lease, limit)).jobs])

    assert claimed[0] == claimed[1]
    kinds = [[event.kind for _, event in (await storage.events(queue)).events] for queue in (FAST, GENERAL)]
    assert kinds[0] == kinds[1]


async def test_a_claim_needs_a_live_lease(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await enqueue(storage, "q", 1)
    await storage.drop(["q"], lease, 10)

    assert [True, True] == [(await storage.claim("q", one, 1)).lost for one in (lease, "0" * 32)]


@pytest.mark.parametrize("cut", [19, 25])
async def test_a_cut_record_is_reported(
    storage: RedisStorage, redis_server: RedisServer, prefix: str, cut: int
) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await enqueue(storage, "q", 1, DATA[2])
    record = await storage._run_command(f"{prefix}:{{q}}:", "HGET", f"{prefix}:{{q}}:waiting", "0")
    redis_server.execute("HSET", f"{prefix}:{{q}}:waiting", "0", record[:cut])

    with pytest.raises(StorageDamaged, match="'0'"):
        await storage.claim("q", lease, 1)
