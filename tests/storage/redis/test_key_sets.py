"""The key sets of Redis: their stored form, their removal after they have expired, and damaged batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from dibs.errors import StorageDamaged
from dibs.model.request_columns import RequestColumns, make_member
from dibs.model.requests import Reject, SettingsPatch
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

NOW = 1_767_225_600_000
Opened = Callable[..., RedisStorage]


def columns(*ids: str, rejects: bool = False) -> RequestColumns:
    return RequestColumns(
        ids=list(ids),
        payloads=[b"1"] * len(ids),
        members=[make_member(id.encode().ljust(12), 0) for id in ids],
        conflicts=[Reject()] * len(ids) if rejects else None,
    )


async def names(redis: Redis, prefix: str) -> set[bytes]:
    """Return the last parts of the names of all keys."""
    return {name.rpartition(b":")[2] async for name in redis.scan_iter(f"{prefix}*")}


async def test_nothing_remains_of_an_expired_set(
    opened: Opened, redis_server: RedisServer, prefix: str
) -> None:
    async with opened(clock="manual") as storage, Redis.from_url(redis_server.url) as redis:
        await storage.configure("q", SettingsPatch(request_key_age=1000), now=NOW)
        for number, one in enumerate((columns("a", "b"), columns("b", "c", rejects=True)), 1):
            await storage.enqueue_batch("q", "run/0", number, one, now=NOW)
        assert {b"keys", b"batch_ends"} <= await names(redis, prefix)

        pruned = await storage.prune("q", 10, now=NOW + 1000)

        assert (3, False) == (pruned.request_keys, pruned.more)
        assert {b"keys", b"batch_ends"}.isdisjoint(await names(redis, prefix))


async def test_a_batch_of_new_jobs_has_sixteen_bytes_a_job(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    ids = [f"{number:04}" for number in range(1000)]
    await storage.enqueue_batch("q", "run/0", 1, columns(*ids))

    async with Redis.from_url(redis_server.url) as redis:
        [name] = [name async for name in redis.scan_iter(f"{prefix}*:keys")]
        sizes = [len(value) for value in (await redis.hgetall(name)).values()]

    assert [16, 12 + 16 * 1000] == sorted(sizes)


@pytest.mark.parametrize("damaged", [b"", b"x" * 20, b"\x7f" * 8 + b"\0\0\0\2" + b"m" * 33])
async def test_a_damaged_batch_is_reported(
    storage: RedisStorage, redis_server: RedisServer, prefix: str, damaged: bytes
) -> None:
    await storage.enqueue_batch("q", "run/0", 1, columns("a"))
    async with Redis.from_url(redis_server.url) as redis:
        [name] = [name async for name in redis.scan_iter(f"{prefix}*:keys")]
        await redis.hset(name, "run/0\0001", damaged)

    with pytest.raises(StorageDamaged, match="request_key"):
        await storage.read_key_set("q", "run/0")


async def test_a_batch_that_a_bound_refuses_changes_nothing(storage: RedisStorage) -> None:
    await storage.configure("q", SettingsPatch(max_waiting=2))
    refused = await storage.enqueue_batch("q", "run/0", 1, columns("a", "b", "c"))
    after = (await storage.counts(["q"]))["q"].waiting
    await storage.configure("q", SettingsPatch(when_full="drop_new"))
    dropped = await storage.enqueue_batch("q", "run/0", 1, columns("a", "b", "c"))
    again = await storage.enqueue_batch("q", "run/0", 1, columns("a", "b", "c"))

    assert ["queued", "queued", "full"] == list(refused or ())
    assert 0 == after
    assert ["queued", "queued", "dropped"] == list(dropped or ())
    assert again is None
    assert 2 == (await storage.counts(["q"]))["q"].waiting
