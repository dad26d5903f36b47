"""The hash of waiting jobs becomes a hash table when it gets long."""

from __future__ import annotations

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import RedisStorage

#: The number of jobs from which the hash is a hash table, as in lua/include/claim_order.lua.
LONG_HASH = 64


def requests(first: int, count: int) -> list[EnqueueRequest]:
    data = JobData(payload=b"1")
    return [EnqueueRequest(job=NewJob(id=f"{n}", data=data)) for n in range(first, first + count)]


async def waiting_encoding(storage: RedisStorage, prefix: str) -> bytes:
    key = f"{prefix}:{{q}}:waiting"
    encoding: bytes = await storage._run_command(key, "OBJECT", "ENCODING", key)
    return encoding


@pytest.mark.parametrize("batches", [[1] * LONG_HASH, [LONG_HASH], [1, LONG_HASH - 1], [40, 24]])
async def test_a_long_hash_is_a_hash_table(storage: RedisStorage, prefix: str, batches: list[int]) -> None:
    *most, last = batches
    first = 0
    for count in most:
        await storage.enqueue("q", requests(first, count))
        first += count
    before = await waiting_encoding(storage, prefix) if most else b""
    await storage.enqueue("q", requests(first, last))

    assert b"hashtable" != before
    assert b"hashtable" == await waiting_encoding(storage, prefix)
    assert LONG_HASH == (await storage.counts(["q"]))["q"].waiting
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    assert [f"{n}" for n in range(LONG_HASH)] == [
        job.id for job in (await storage.claim("q", lease, 99)).jobs
    ]
