"""A Redis at maxmemory with noeviction, and a read-only replica: each verb of a session that opens then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from dibs.errors import StorageFull, StorageReadOnly
from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Release,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.storage.redis import RedisStorage, open_url
from dibs_conformance.servers import RedisServer, start_redis
from tests.storage.exchange import PATIENCE

#: More ids than a listing reads at once.
MANY: Final = 1200
Call = Callable[[RedisStorage], Awaitable[Any]]


def request(id: str, payload: bytes = b"", delay: int | None = None) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload), delay=delay))


async def read_all(storage: RedisStorage) -> set[str]:
    ids, after = set[str](), None
    while True:
        page = await storage.list("long", "waiting", after=after, limit=500)
        ids |= {id for id, _ in page.items}
        if (after := page.after) is None:
            return ids


async def export_all(storage: RedisStorage) -> set[str]:
    ids, after = set[str](), None
    while True:
        page = await storage.export("long", after=after, limit=500)
        ids |= {record.id for record in page.records}
        if (after := page.after) is None:
            return ids


#: Calls that only read.
READS: Final[Mapping[str, Call]] = {
    "get": lambda it: it.get("q", ["a"]),
    "counts": lambda it: it.counts(["q"]),
    "queues": lambda it: it.queues(),
    "events": lambda it: it.events("q"),
    "settings": lambda it: it.configure("q", SettingsPatch()),
    "wait": lambda it: it.wait(["q"], timeout=PATIENCE),
    "wait for ids": lambda it: it.wait(["q"], for_="ids", ids=["a"], timeout=0),
    "split": lambda it: it.split("long", 3),
    "diagnose": lambda it: it.diagnose(),
}
#: Calls that end jobs, let them run, or remove what is stored.
ALLOWED: Final[Mapping[str, Call]] = {
    "cancel": lambda it: it.cancel("q", ["b"]),
    "forget": lambda it: it.forget("q", ["c"]),
    "prune": lambda it: it.prune("q", 10),
    "reap": lambda it: it.reap("q", 10),
    "configure": lambda it: it.configure("q", SettingsPatch(paused=False, retention=OutcomeRetention())),
    "a new queue": lambda it: it.grant(["q", "new"], 60_000, "worker"),
    "amend": lambda it: it.amend("q", "a", JobPatch(priority=3, retention=OutcomeRetention(completed=5))),
    "retry_failed": lambda it: it.retry_failed("q", ["failed"]),
    "wake_claim": lambda it: it.wake_claim("q", "claim"),
}
#: Calls that store more.
REFUSED: Final[Mapping[str, Call]] = {
    "enqueue": lambda it: it.enqueue("q", [request("more")]),
    "enqueue in a new queue": lambda it: it.enqueue("newer", [request("more")]),
    "update": lambda it: it.enqueue("q", [request("a", b"more")]),
    "amend": lambda it: it.amend("q", "a", JobPatch(payload=b"more")),
    "update of a scheduled job": lambda it: it.enqueue("q", [request("later", b"more", 99_000)]),
}


async def fill(storage: RedisStorage) -> None:
    """Store waiting jobs, a failed one, and a queue that a listing reads in several pages."""
    lease = (await storage.grant(["q"], 60_000, "worker")).lease
    await storage.enqueue("q", [request("failed")])
    (job,) = (await storage.claim("q", lease, 1)).jobs
    assert job.run is not None
    await storage.settle(
        "q", [Settlement(id=job.id, fence=job.run.fence, action=Fail(error=Error(type="E", message="no")))]
    )
    await storage.enqueue("q", [request("later", delay=60_000), *(request(id) for id in "abcdefg")])
    for first in range(0, MANY, 600):
        await storage.enqueue("long", [request(str(n)) for n in range(first, first + 600)])


@pytest.fixture(scope="module")
def full_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    with start_redis() as server:
        yield server


@pytest.fixture
async def full(full_server: RedisServer) -> AsyncIterator[RedisStorage]:
    """A storage that is opened on a full server."""
    full_server.execute("FLUSHALL")
    async with open_url(full_server.url) as storage:
        await fill(storage)
    full_server.execute("CONFIG", "SET", "maxmemory", 1)
    try:
        async with open_url(full_server.url) as storage:
            yield storage
    finally:
        full_server.execute("CONFIG", "SET", "maxmemory", 0)


@pytest.fixture
async def replica() -> AsyncIterator[RedisStorage]:
    """A storage that is opened on a read-only replica, which has lost its primary."""
    with start_redis() as server:
        async with open_url(server.url) as storage:
            await fill(storage)
        server.execute("REPLICAOF", "127.0.0.1", "1")
        async with open_url(server.url) as storage:
            yield storage


@pytest.mark.parametrize("name", [*READS, *ALLOWED])
async def test_a_full_server_reads_and_frees_memory(full: RedisStorage, name: str) -> None:
    await {**READS, **ALLOWED}[name](full)


async def drain(storage: RedisStorage) -> None:
    """Run all jobs of the queue q, each kind of end once."""
    queues = ["q", "long"]
    lease = (await storage.grant(queues, 60_000, "worker")).lease
    claims = await storage.claim_blocking_any(queues, lease, 2, claim_id="c", timeout=1)
    first = [job for claim in claims.values() for job in claim.jobs]
    assert 2 == len(first)
    assert (await storage.renew(queues, lease, 60_000))["q"].alive
    await storage.drop(queues, lease, 100)
    lease = (await storage.grant(queues, 60_000, "worker")).lease
    jobs = (await storage.claim_blocking("q", lease, 3, claim_id="d", timeout=1)).jobs
    fences = {job.id: job.run.fence for job in jobs if job.run}
    assert "reported" == await storage.report("q", jobs[0].id, fences[jobs[0].id], b"1", b"memo")
    actions: list[SettleAction] = [Complete(result=b"1"), HandOff(), Release()]
    ends = [
        Settlement(id=id, fence=fence, action=action)
        for (id, fence), action in zip(fences.items(), actions, strict=True)
    ]
    both = await storage.settle_and_claim("q", ends, lease, 100)
    assert ["done", "handed_off", "returned"] == [one.status for one in both.settled]
    ends = [
        Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in both.claim.jobs if job.run
    ]
    assert {"done"} == {one.status for one in await storage.settle("q", ends)}
    handed_off = (await storage.list("q", "active")).items[0][1].current
    assert handed_off is not None
    assert "done" == await storage.finish("q", handed_off.id, Complete(), handed_off.revision)

    assert ["later"] == [id for id, _ in (await storage.list("q", "waiting")).items]


async def test_a_full_server_drains_its_backlog(full: RedisStorage) -> None:
    await drain(full)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_full_server_refuses_new_data_and_writes_nothing(
    full: RedisStorage, full_server: RedisServer, name: str
) -> None:
    before = snapshot(full_server)
    with pytest.raises(StorageFull, match="maxmemory"):
        await REFUSED[name](full)

    assert before == snapshot(full_server)


def snapshot(server: RedisServer) -> Any:
    keys = sorted(server.execute("KEYS", "*"))
    return [(key, server.execute("DUMP", key)) for key in keys]


async def test_a_new_storage_on_a_full_server_is_opened() -> None:
    with start_redis() as server:
        server.execute("CONFIG", "SET", "maxmemory", 1)
        async with open_url(server.url) as storage:
            assert [] == await storage.queues()
            assert [] == server.execute("KEYS", "*")
            await storage.grant(["q"], 60_000, "worker")


@pytest.mark.parametrize("listing", [read_all, export_all])
async def test_a_long_queue_is_listed(
    full: RedisStorage, replica: RedisStorage, listing: Callable[[RedisStorage], Awaitable[set[str]]]
) -> None:
    assert set(map(str, range(MANY))) == await listing(full) == await listing(replica)


async def test_a_replica_is_read_and_says_that_it_takes_no_writes(replica: RedisStorage) -> None:
    for read in READS.values():
        await read(replica)
    for write in {**ALLOWED, **REFUSED}.values():
        if write is ALLOWED["reap"]:
            continue  # no lease has expired, so there is nothing to write
        with pytest.raises(StorageReadOnly, match="read-only replica"):
            await write(replica)
