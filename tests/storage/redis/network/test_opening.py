"""Errors about a server that cannot be used; no message contains a password."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from redis.asyncio import from_url

from dibs.errors import (
    DibsError,
    StorageDamaged,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
    UnknownOption,
)
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.network import cluster, connections, opening
from dibs_conformance.servers import RedisServer, start_redis

SECRET = "open-sesame"


async def error_of(url: str, kind: type[DibsError], **options: Any) -> str:
    with pytest.raises(kind) as caught:
        async with open_url(url, **options):
            pass
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster, connections):
        monkeypatch.setattr(module, "CONNECT_PAUSES", (0.0, 0.0))


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_an_unreachable_server_is_named(scheme: str, hasty: None) -> None:
    text = await error_of(f"{scheme}://:{SECRET}@127.0.0.1:1", StorageUnavailable)

    assert "127.0.0.1:1" in text
    assert "tried 2 times" in text


async def test_a_wrong_password_is_reported(redis_server: RedisServer) -> None:
    text = await error_of(f"redis://:{SECRET}@127.0.0.1:{redis_server.port}", StorageUnavailable)

    assert "name or password" in text


async def test_a_missing_password_is_reported(redis_server: RedisServer) -> None:
    assert "password" in await error_of(f"redis://127.0.0.1:{redis_server.port}", StorageUnavailable)


async def test_no_secret_is_shown(redis_server: RedisServer) -> None:
    async with open_url(redis_server.url) as storage:
        shown = f"{storage!r} {storage.url} {storage.durability} {vars(storage)}"

    assert redis_server.password not in shown


@pytest.mark.parametrize("query", ["fsync=1", "socket_timeouts=1"])
async def test_an_unknown_option_is_refused_and_the_known_are_listed(query: str) -> None:
    text = await error_of(f"redis://:{SECRET}@127.0.0.1:1?{query}", UnknownOption)

    assert "address_map, allow_eviction, max_connections, poll, prefix" in text


async def test_an_unknown_keyword_is_refused() -> None:
    await error_of("redis://127.0.0.1:1", UnknownOption, fsync=True)


async def test_the_drivers_options_are_the_drivers(redis_server: RedisServer) -> None:
    async with open_url(f"{redis_server.url}?client_name=me&prefix=other") as storage:
        assert "me" in str(await storage._run_command("x", "CLIENT", "GETNAME"))


async def test_a_server_that_is_too_old_is_named(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MIN_VERSION", (99, 0))
    async with from_url(redis_server.url) as client:
        # INFO and not the version of the binary: Valkey reports the Redis version that it is compatible with.
        version = (await client.info("server"))["redis_version"]

    assert f"is Redis {version[:3]}" in await error_of(redis_server.url, StorageUnavailable)


async def test_a_single_server_is_no_cluster(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("redis:", "redis+cluster:")

    assert "redis://" in await error_of(url, StorageUnavailable)


async def test_the_first_write_raises_an_older_layout(redis_server: RedisServer) -> None:
    """A dibs that knows only layout 1 cannot read keys and memos, so it must refuse to open the place."""
    redis_server.execute("SET", "older:version", "1")
    async with open_url(redis_server.url, prefix="older") as storage:
        assert "1" == redis_server.execute("GET", "older:version")
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])

    assert str(opening.LAYOUT) == redis_server.execute("GET", "older:version")


async def test_a_newer_layout_is_refused(redis_server: RedisServer) -> None:
    redis_server.execute("SET", "newer:version", "999")

    assert "upgrade" in await error_of(redis_server.url, StorageTooNew, prefix="newer")


async def test_eviction_is_refused_unless_it_is_allowed() -> None:
    with start_redis(maxmemory_policy="allkeys-lru") as server:
        text = await error_of(server.url, StorageUnavailable)
        async with open_url(f"{server.url}?allow_eviction=1") as storage:
            assert [] == await storage.queues()

    assert "allkeys-lru" in text
    assert "allow_eviction" in text


async def test_the_storage_reports_its_durability() -> None:
    with start_redis(appendonly="yes") as kept, start_redis() as weak:
        async with open_url(kept.url) as one, open_url(weak.url) as other:
            assert ("append-only" in one.durability, "weak" in other.durability) == (True, True)


async def test_a_replica_refuses_writes_and_works_again_as_a_primary() -> None:
    with start_redis() as server:
        async with open_url(server.url) as storage:
            server.execute("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(StorageReadOnly, match="primary"):
                await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
            server.execute("REPLICAOF", "NO", "ONE")

            assert "queued" == (await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))]))[0].status


async def test_a_key_of_another_type_is_reported(
    storage: RedisStorage, prefix: str, redis_server: RedisServer
) -> None:
    redis_server.execute("SET", f"{prefix}:{{q}}:waiting", "mine")

    with pytest.raises(StorageDamaged, match="prefix"):
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
