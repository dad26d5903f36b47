"""The examination of a Redis, each fault on a real server, and a server without faults."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dibs.model.findings import Finding
from dibs.storage.redis import open_url
from dibs.storage.redis.network.rights import needed_rights
from dibs_conformance.servers import RedisServer, start_redis

#: Settings of a server without faults, which each test changes.
HEALTHY = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "maxmemory": "0"}


@pytest.fixture(scope="module")
def own_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis for this module; without a server, the fixture `redis_server` skips the tests."""
    with start_redis(appendonly="yes") as server:
        yield server


@pytest.fixture
def server(own_server: RedisServer) -> Iterator[RedisServer]:
    most = own_server.execute("CONFIG", "GET", "maxclients")[1]
    yield own_server
    for name, value in {**HEALTHY, "maxclients": most}.items():
        own_server.execute("CONFIG", "SET", name, value)


async def diagnose(server: RedisServer, **options: Any) -> list[Finding]:
    return await open_url(server.url, **options).diagnose()


async def codes(server: RedisServer) -> list[str]:
    return [finding.code for finding in await diagnose(server)]


async def test_a_healthy_redis_has_no_findings(server: RedisServer) -> None:
    async with open_url(server.url, prefix="healthy"):
        assert [] == await diagnose(server, prefix="healthy")


async def test_a_redis_that_may_evict_jobs_is_found(server: RedisServer) -> None:
    server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    (refused,) = await diagnose(server)
    (accepted,) = await diagnose(server, allow_eviction=True)

    assert ("redis-eviction", "error", "maxmemory-policy is allkeys-lru") == (
        refused.code, refused.severity, refused.found,
    )  # fmt: skip
    assert (True, False) == (refused.blocks, accepted.blocks)


async def test_a_redis_without_persistence_is_found(redis_server: RedisServer) -> None:
    (found,) = await diagnose(redis_server)

    assert ("redis-no-persistence", "appendonly is no, and snapshots are off") == (found.code, found.found)


async def test_appends_that_are_never_synced_are_found(server: RedisServer) -> None:
    server.execute("CONFIG", "SET", "appendfsync", "no")

    assert ["redis-fsync-off"] == await codes(server)


async def test_a_full_memory_is_found(server: RedisServer) -> None:
    info = server.execute("INFO", "memory")
    used = int(info.partition("used_memory:")[2].split()[0])
    server.execute("CONFIG", "SET", "maxmemory", used)

    assert ["redis-memory"] == await codes(server)


async def test_too_many_connections_are_found(server: RedisServer) -> None:
    with ExitStack() as stack:
        for _ in range(9):
            wire = stack.enter_context(socket.socket(socket.AF_UNIX))
            wire.connect(str(server.socket))
        server.execute("CONFIG", "SET", "maxclients", 11)

        assert ["redis-connections"] == await codes(server)


async def test_a_snapshot_that_failed_is_found(redis_server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with start_redis(dir=str(folder)) as server:
        folder.rmdir()
        server.execute("BGSAVE")
        while "rdb_bgsave_in_progress:1" in server.execute("INFO", "persistence"):
            pass

        assert ["redis-no-persistence", "redis-save-failed"] == await codes(server)


@pytest.mark.parametrize(("layout", "code"), [(0, "layout-older"), (99, "layout-newer")])
async def test_another_layout_is_found_and_left(server: RedisServer, layout: int, code: str) -> None:
    prefix = f"layout-{layout}"
    key = f"{prefix}:version"
    server.execute("SET", key, layout)
    (found,) = await diagnose(server, prefix=prefix)

    assert (code, True, str(layout)) == (found.code, found.blocks, server.execute("GET", key))


async def test_a_replica_is_found() -> None:
    with start_redis(appendonly="yes") as replica:
        replica.execute("REPLICAOF", "127.0.0.1", "1")

        assert ["redis-replica"] == await codes(replica)


async def test_missing_rights_are_found_with_all_rights(server: RedisServer) -> None:
    server.execute("ACL", "SETUSER", "app", "reset", "on", ">secret", *needed_rights("dibs").split(), "-hset")
    (found,) = await open_url(server.url.replace(f":{server.password}@", "app:secret@")).diagnose()

    assert ("redis-rights", True, "the account lacks +hset") == (found.code, found.blocks, found.found)
    assert needed_rights("dibs") in found.advice


async def test_a_server_that_forbids_info_is_not_examined(server: RedisServer) -> None:
    server.execute("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all", "-@dangerous")
    url = server.url.replace(f":{server.password}@", "app:secret@")

    assert ["redis-unexamined"] == [finding.code for finding in await open_url(url).diagnose()]


async def test_a_server_that_forbids_config_is_examined_as_far_as_it_allows(server: RedisServer) -> None:
    server.execute("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-config")
    url = server.url.replace(f":{server.password}@", "app:secret@")

    assert [] == await open_url(url).diagnose()
