"""The library of functions: loaded once, loaded again when it is lost, and replaced by scripts without it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import pytest

from dibs.errors import StorageFull
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.network import scripts
from dibs.storage.redis.network.rights import FUNCTION_RIGHTS, needed_rights
from dibs_conformance.servers import RedisServer, start_valkey
from dibs_conformance.servers.processes import find_valkey
from tests.redis_cluster import start_redis_cluster
from tests.storage.redis.servers import code_of


@pytest.fixture
def server(valkey_server: RedisServer) -> Iterator[RedisServer]:
    """A server that has functions, without a library."""
    valkey_server.execute("FUNCTION", "FLUSH")
    yield valkey_server
    valkey_server.execute("FUNCTION", "FLUSH")


def libraries(server: RedisServer) -> list[str]:
    return sorted(fields[1] for fields in server.execute("FUNCTION", "LIST"))


def calls_of(server: RedisServer) -> dict[str, int]:
    """Return how often the server has run the commands that call Lua code."""
    found = re.findall(r"cmdstat_(fcall|evalsha|eval):calls=(\d+)", server.execute("INFO", "commandstats"))
    return {name: int(calls) for name, calls in found}


async def run_job(storage: RedisStorage, id: str = "a") -> str:
    """Enqueue, claim and settle a job, and return the status of the settlement."""
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id))])
    lease = (await storage.grant(["q"], 60_000, "worker")).lease
    (job,) = (await storage.claim("q", lease, 1)).jobs
    assert job.run is not None
    ends = [Settlement(id=id, fence=job.run.fence, action=Complete())]
    return (await storage.settle("q", ends))[0].status


async def test_a_job_runs_no_script(server: RedisServer, prefix: str) -> None:
    before = calls_of(server)
    async with open_url(server.url, prefix=prefix) as storage:
        assert "FCALL" == code_of(storage, "enqueue")[0]
        assert "done" == await run_job(storage)

    after = calls_of(server)
    assert [scripts.library_name()] == libraries(server)
    assert after["fcall"] > before.get("fcall", 0)
    assert before.get("evalsha", 0) == after.get("evalsha", 0)


async def test_a_lost_library_goes_unnoticed_under_load(server: RedisServer, prefix: str) -> None:
    async def work(storage: RedisStorage, name: str) -> None:
        lease = (await storage.grant(["q"], 60_000, name)).lease
        for i in range(40):
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=f"{name}{i}"))])
            jobs = (await storage.claim("q", lease, 5)).jobs
            ends = [Settlement(id=j.id, fence=j.run.fence, action=Complete()) for j in jobs if j.run]
            assert {"done"} >= {one.status for one in await storage.settle("q", ends)}

    async def flush() -> None:
        while True:
            await asyncio.to_thread(server.execute, "FUNCTION", "FLUSH")
            await asyncio.to_thread(server.execute, "SCRIPT", "FLUSH")
            await asyncio.sleep(0.05)

    async with open_url(server.url, prefix=prefix) as storage:
        flushing = asyncio.create_task(flush())
        await asyncio.gather(*(work(storage, name) for name in "abcd"))
        flushing.cancel()
        with suppress(asyncio.CancelledError):
            await flushing
        counts = (await storage.counts(["q"]))["q"]

    assert (160, 0, 0) == (counts.completed, counts.waiting, counts.active)


async def test_two_versions_use_a_server_at_the_same_time(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_url(server.url, prefix=prefix) as storage:
        assert "done" == await run_job(storage)
        ours, read = scripts.library_name(), scripts._read_lua
        with monkeypatch.context() as patch:
            patch.setattr(scripts, "_read_lua", lambda name: f"{read(name)}\nlocal newer = 1\n"
                          if name == "include/leases" else read(name))  # fmt: skip
            for name in ("library_name", "library_text"):
                patch.setattr(scripts, name, cache(getattr(scripts, name).__wrapped__))
            assert "done" == await run_job(storage, "b")
            newer = scripts.library_name()
        assert "done" == await run_job(storage, "c")

    assert sorted({ours, newer}) == libraries(server)


async def test_the_state_of_a_call_that_failed_is_forgotten(server: RedisServer, prefix: str) -> None:
    """The locals of a library outlive a call; a script begins with new ones."""
    async with open_url(server.url, prefix=prefix) as storage:
        await run_job(storage)
        server.execute("CONFIG", "SET", "maxmemory", 1)
        try:
            with pytest.raises(StorageFull):
                await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="refused"))])
        finally:
            server.execute("CONFIG", "SET", "maxmemory", 0)
        server.execute("RENAME", f"{prefix}:{{q}}:meta", f"{prefix}:kept")
        server.execute("SET", f"{prefix}:{{q}}:meta", "x")
        with suppress(Exception):
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="b"))])
        server.execute("RENAME", f"{prefix}:kept", f"{prefix}:{{q}}:meta")
        await storage.enqueue("other", [EnqueueRequest(job=NewJob(id="c"))])
        slots = await storage.get("q", ["refused", "b"])

    assert [None, None] == [slot.current for slot in slots]


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_full_server_calls_scripts(prefix: str, loaded: bool) -> None:  # noqa: FBT001
    with start_valkey() as server:
        async with open_url(server.url, prefix=prefix) as storage:
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in "ab"])
            if not loaded:
                server.execute("FUNCTION", "FLUSH")
            server.execute("CONFIG", "SET", "maxmemory", 1)
            lease = (await storage.grant(["q"], 60_000, "worker")).lease
            jobs = (await storage.claim("q", lease, 2)).jobs
            with pytest.raises(StorageFull):
                await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="c"))])

        assert ["a", "b"] == [job.id for job in jobs]
        assert calls_of(server)["evalsha"] > 0


async def test_a_replica_without_the_library_is_read_by_scripts(prefix: str) -> None:
    with start_valkey() as server:
        async with open_url(server.url, prefix=prefix) as storage:
            await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
        server.execute("FUNCTION", "FLUSH")
        server.execute("REPLICAOF", "127.0.0.1", "1")
        async with open_url(server.url, prefix=prefix) as storage:
            (slot,) = await storage.get("q", ["a"])

    assert slot.current is not None


async def test_each_node_of_a_cluster_loads_the_library(prefix: str) -> None:
    with start_redis_cluster(found=find_valkey()) as cluster:
        async with open_url(cluster.url_of_all, prefix=prefix) as storage:
            for number in range(20):
                await storage.enqueue(f"q{number}", [EnqueueRequest(job=NewJob(id="a"))])

        assert [[scripts.library_name()]] * 3 == [libraries(node) for node in cluster.nodes]
        assert [0] * 3 == [calls_of(node).get("evalsha", 0) for node in cluster.nodes]


@pytest.mark.parametrize(
    ("rules", "called"),
    [
        (FUNCTION_RIGHTS, "FCALL"),
        ("+fcall", "EVALSHA"),
        ("+function|load", "EVALSHA"),
        ("", "EVALSHA"),
    ],
)
async def test_an_account_without_the_rights_calls_scripts(
    server: RedisServer, prefix: str, rules: str, called: str
) -> None:
    rights = needed_rights(prefix).split()
    server.execute("ACL", "SETUSER", prefix, "reset", "on", ">secret", *rights, *rules.split())
    url = f"redis://{prefix}:secret@127.0.0.1:{server.port}/0"
    async with open_url(url, prefix=prefix) as storage:
        found = [finding for finding in await storage.diagnose() if finding.code == "redis-functions"]
        assert called == code_of(storage, "enqueue")[0]
        assert "done" == await run_job(storage)

    assert ([] if called == "FCALL" else [FUNCTION_RIGHTS]) == [
        one.found.removeprefix("the account lacks ") for one in found
    ]


async def test_a_right_that_is_taken_away_costs_no_call(server: RedisServer, prefix: str) -> None:
    rights = [*needed_rights(prefix).split(), *FUNCTION_RIGHTS.split()]
    server.execute("ACL", "SETUSER", prefix, "reset", "on", ">secret", *rights)
    async with open_url(f"redis://{prefix}:secret@127.0.0.1:{server.port}/0", prefix=prefix) as storage:
        assert "done" == await run_job(storage)
        server.execute("ACL", "SETUSER", prefix, "-fcall")

        assert "done" == await run_job(storage, "b")


async def test_functions_and_scripts_draw_numbers_of_one_incarnation(
    server: RedisServer, prefix: str
) -> None:
    """A queue that two programs use, one of them without the rights, must not jump ahead at each call."""
    rights = [*needed_rights(prefix).split(), "-info"]
    server.execute("ACL", "SETUSER", prefix, "reset", "on", ">secret", *rights)
    account = f"redis://{prefix}:secret@127.0.0.1:{server.port}/0"
    async with open_url(server.url, prefix=prefix) as functions, open_url(account, prefix=prefix) as plain:
        await run_job(functions, "first")
        await run_job(plain, "first")
        numbers = []
        for number in range(4):
            storage = (functions, plain)[number % 2]
            (added,) = await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=f"{number}"))])
            numbers.append(added.revision)

    assert sorted(numbers) == numbers
    assert numbers[-1] - numbers[0] < 2 * 3_600_000_000
