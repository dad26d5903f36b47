"""Calls for one job: the number of their commands, a damaged queue, and a list of stale entries."""

from __future__ import annotations

import pytest

from dibs.errors import StorageDamaged
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer
from tests.storage.redis.servers import count_commands


def request(id: str, data: JobData | None = None) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=data or JobData(payload=b"{}")))


async def test_a_call_for_one_job_runs_few_commands(storage: RedisStorage, redis_server: RedisServer) -> None:
    """The numbers include the call itself."""
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    numbers = []
    for id in ("first", "second"):
        with count_commands(redis_server) as enqueue:
            await storage.enqueue("q", [request(id)])
        with count_commands(redis_server) as claim:
            (job,) = (await storage.claim("q", lease, 2)).jobs
        assert job.run is not None
        with count_commands(redis_server) as settle:
            await storage.settle("q", [Settlement(id=id, fence=job.run.fence, action=Complete(result=b"1"))])
        numbers = [enqueue.number, claim.number, settle.number]

    assert all(number <= most for number, most in zip(numbers, (18, 22, 30), strict=True)), numbers


@pytest.mark.parametrize("key", ["due:0", "priorities", "waiting", "active"])
async def test_a_key_of_another_type_fails_an_enqueue_that_changes_nothing(
    storage: RedisStorage, prefix: str, key: str
) -> None:
    await storage.enqueue("q", [request("warm")])
    start = f"{prefix}:{{q}}:"
    await storage._run_command(start + key, "DEL", start + key)
    await storage._run_command(start + key, "SET", start + key, "other data")

    async def dump() -> dict[bytes, bytes]:
        names = await storage._run_command(start, "KEYS", start + "*")
        return {name: await storage._run_command(name.decode(), "DUMP", name) for name in names}

    before = await dump()
    with pytest.raises(StorageDamaged):
        await storage.enqueue("q", [request("new")])
    assert before == await dump()


async def test_a_list_of_stale_entries_gets_no_more(storage: RedisStorage, prefix: str) -> None:
    """The ordered set takes the job instead."""
    start = f"{prefix}:{{q}}:"
    await storage.enqueue("q", [request("live")])
    for first in range(0, 1010, 101):
        ids = [f"{n}" for n in range(first, first + 101)]
        await storage.enqueue("q", [request(id) for id in ids])
        await storage.cancel("q", ids)
    length = await storage._run_command(start, "LLEN", start + "due:0")
    (answer,) = await storage.enqueue("q", [request("new")])

    assert "queued" == answer.status
    assert [length, 1, b"1", 2] == [
        await storage._run_command(start, *command)
        for command in (
            ("LLEN", start + "due:0"),
            ("ZCARD", start + "line:0"),
            ("HGET", start + "priorities", "0"),
            ("HLEN", start + "waiting"),
        )
    ]
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    assert ["live", "new"] == [job.id for job in (await storage.claim("q", lease, 10)).jobs]


async def test_a_claim_that_reaches_its_limit_releases_the_next_blocking_claim(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await storage.enqueue("q", [request("0"), request("1")])
    await storage.claim_blocking("q", lease, 1, claim_id="a", timeout=5.0)
    assert 1 == redis_server.execute("LLEN", f"{prefix}:{{q}}:claim_tokens")

    assert 1 == len((await storage.claim_blocking("q", lease, 1, claim_id="b", timeout=5.0)).jobs)
    assert 0 == redis_server.execute("LLEN", f"{prefix}:{{q}}:claim_tokens")


@pytest.mark.parametrize("cut", [19, 25])
async def test_a_cut_record_is_reported(
    storage: RedisStorage, redis_server: RedisServer, prefix: str, cut: int
) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await storage.enqueue("q", [request("0", JobData(payload=b"{}", attributes={"size": b"7"}))])
    record = await storage._run_command(f"{prefix}:{{q}}:", "HGET", f"{prefix}:{{q}}:waiting", "0")
    redis_server.execute("HSET", f"{prefix}:{{q}}:waiting", "0", record[:cut])

    with pytest.raises(StorageDamaged, match="'0'"):
        await storage.claim("q", lease, 1)
