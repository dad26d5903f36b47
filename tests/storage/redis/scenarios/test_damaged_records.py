"""A damaged record: each verb that needs it raises StorageDamaged with queue and id, and changes no key.

Otherwise its job would wait for ever, and no caller would learn why. `forget` removes the damaged job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from dibs.errors import StorageDamaged
from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Reject,
    RetryLater,
    SettingsPatch,
    Settlement,
)
from dibs.storage.protocol import Storage
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

QUEUE = "q{%}é"
NOW, EXPIRED = 1000, 50_000
#: An id with bytes that an error reply of Redis cannot carry.
ID = "x\r\né"

Verb = Callable[[Storage, str, int], Awaitable[Any]]


def request(id: str, **fields: Any) -> EnqueueRequest:
    key = fields.pop("request_key", None)
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1", **fields)), request_key=key)


def settle(action: Any) -> Verb:
    return lambda s, _, fence: s.settle(QUEUE, [Settlement(id=ID, fence=fence, action=action)], now=NOW)


def claim(limit: int = 10) -> Verb:
    return lambda s, lease, _: s.claim(QUEUE, lease, limit, now=NOW)


async def read_all(storage: Storage, *_: Any) -> None:
    await storage.get(QUEUE, ["good", ID], now=NOW)


def list_all(state: Any) -> Verb:
    return lambda s, *_: s.list(QUEUE, state, now=NOW)


READS: dict[str, Verb] = {"get": read_all, "export": lambda s, *_: s.export(QUEUE)}
ENQUEUE: Verb = lambda s, *_: s.enqueue(QUEUE, [request("good"), request(ID)], now=NOW)  # noqa: E731
CANCEL: Verb = lambda s, *_: s.cancel(QUEUE, ["good", ID], running=True, now=NOW)  # noqa: E731
AMEND: Verb = lambda s, *_: s.amend(QUEUE, ID, JobPatch(attributes={"a": b"1"}), now=NOW)  # noqa: E731
EXTEND: Verb = lambda s, *_: s.amend(  # noqa: E731
    QUEUE, ID, JobPatch(retention=OutcomeRetention(completed=1, failed=1, cancelled=1)), now=NOW
)
REAP: Verb = lambda s, *_: s.reap(QUEUE, 10, now=EXPIRED)  # noqa: E731

WAITING: dict[str, Verb] = {
    **READS,
    "list": list_all("waiting"),
    "claim": claim(),
    "enqueue": ENQUEUE,
    "cancel": CANCEL,
    "amend": AMEND,
}
ACTIVE: dict[str, Verb] = {
    **READS,
    "list": list_all("active"),
    "complete": settle(Complete()),
    "fail": settle(Fail(error=Error(type="E"))),
    "cancelled": settle(Cancelled()),
    "retry": settle(RetryLater()),
    "hand off": settle(HandOff()),
    "report": lambda s, _, fence: s.report(QUEUE, ID, fence, b"1", now=NOW),
    "finish": lambda s, *_: s.finish(QUEUE, ID, Complete(), 5, now=NOW),
    "cancel": CANCEL,
    "amend": AMEND,
    "drop": lambda s, lease, _: s.drop([QUEUE], lease, 10, now=NOW),
    "reap": REAP,
}
SUCCESSOR: dict[str, Verb] = {
    **READS, "list": list_all("blocked"), "complete": settle(Complete()), "retry": settle(RetryLater()),
    "enqueue": ENQUEUE, "cancel": CANCEL, "amend": AMEND, "reap": REAP,
}  # fmt: skip
OUTCOME: dict[str, Verb] = {
    **READS,
    "list": list_all("failed"),
    "cancel": CANCEL,
    "retry_failed": lambda s, *_: s.retry_failed(QUEUE, [ID], now=NOW),
    "amend": EXTEND,
    "reject": lambda s, *_: s.enqueue(
        QUEUE, [EnqueueRequest(job=NewJob(id=ID), on_conflict=Reject())], now=NOW
    ),
}
LEASE: dict[str, Verb] = {
    "claim": claim(),
    "renew": lambda s, lease, _: s.renew([QUEUE], lease, 10, now=NOW),
    "drop": lambda s, lease, _: s.drop([QUEUE], lease, 10, now=NOW),
    "reap": REAP,
}


async def fill(storage: Storage) -> tuple[str, int]:
    """Create `good` and ID as waiting jobs. Return a lease, and the fence 0."""
    await storage.enqueue(QUEUE, [request(ID, priority=3), request("good")], now=NOW)
    return (await storage.grant([QUEUE], 10_000, "kit", now=NOW)).lease, 0


async def fill_scheduled(storage: Storage) -> tuple[str, int]:
    delayed = [EnqueueRequest(job=NewJob(id=id, delay=10)) for id in (ID, "good")]
    await storage.enqueue(QUEUE, delayed, now=NOW - 100)
    return (await storage.grant([QUEUE], 10_000, "kit", now=NOW)).lease, 0


async def fill_retried(storage: Storage) -> tuple[str, int]:
    lease, fence = await fill_active(storage)
    back = Settlement(id=ID, fence=fence, action=RetryLater(error=Error(type="E")))
    await storage.settle(QUEUE, [back], now=NOW)
    return lease, 0


async def fill_active(storage: Storage) -> tuple[str, int]:
    lease, _ = await fill(storage)
    (job, _) = (await storage.claim(QUEUE, lease, 10, now=NOW)).jobs
    assert (ID, True) == (job.id, job.run is not None)
    return lease, job.run.fence if job.run else 0


async def fill_blocked(storage: Storage) -> tuple[str, int]:
    lease, fence = await fill_active(storage)
    await storage.enqueue(QUEUE, [request(ID)], now=NOW)
    return lease, fence


async def fill_failed(storage: Storage) -> tuple[str, int]:
    lease, fence = await fill_active(storage)
    end = Settlement(id=ID, fence=fence, action=Fail(error=Error(type="E")))
    await storage.settle(QUEUE, [end], now=NOW)
    return lease, 0


#: Part -> the hash of its records, the verbs that need the record, and the function that creates it.
PARTS: dict[str, tuple[str, dict[str, Verb], Callable[[Storage], Awaitable[tuple[str, int]]]]] = {
    "waiting": ("waiting", WAITING, fill),
    "scheduled": ("waiting", WAITING, fill_scheduled),
    "retried": ("waiting", WAITING, fill_retried),
    "active": ("active", ACTIVE, fill_active),
    "successor": ("successors", SUCCESSOR, fill_blocked),
    "outcome": ("outcomes", OUTCOME, fill_failed),
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"damaged by hand",
    "zeros": lambda record: bytes(len(record)),
    "ones": lambda record: b"\xff" * len(record),
    "cut in the head": lambda record: record[:12],
    "cut before the data": lambda record: record[:-2],
}
CASES = [(part, verb) for part, (_, verbs, _) in PARTS.items() for verb in verbs]


@pytest.fixture
async def client(redis_server: RedisServer) -> Any:
    async with Redis.from_url(redis_server.url) as client:
        yield client


async def snapshot(client: Any, prefix: str) -> dict[bytes, Any]:
    return {key: await client.dump(key) async for key in client.scan_iter(f"{prefix}*", count=1000)}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(("part", "verb"), CASES, ids=lambda name: name)
async def test_a_damaged_record_is_named(
    opened: Callable[..., RedisStorage], client: Any, prefix: str, part: str, verb: str, damage: str
) -> None:
    name, verbs, create = PARTS[part]
    async with opened(clock="manual") as storage:
        lease, fence = await create(storage)
        key = f"{storage._queue_prefix(QUEUE)}{name}"
        record = await client.hget(key, ID)
        await client.hset(key, ID, DAMAGES[damage](record))
        before = await snapshot(client, prefix)

        with pytest.raises(StorageDamaged) as caught:
            await verbs[verb](storage, lease, fence)
        assert repr(QUEUE) in str(caught.value)
        assert repr(ID) in str(caught.value)
        assert before == await snapshot(client, prefix)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
async def test_forget_removes_a_damaged_job_and_the_others_run(
    opened: Callable[..., RedisStorage], client: Any, part: str, damage: str
) -> None:
    name, _, create = PARTS[part]
    async with opened(clock="manual") as storage:
        lease, _ = await create(storage)
        key = f"{storage._queue_prefix(QUEUE)}{name}"
        await client.hset(key, ID, DAMAGES[damage](await client.hget(key, ID)))

        assert [True] == await storage.forget(QUEUE, [ID], now=NOW)
        await storage.drop([QUEUE], lease, 10, now=NOW)
        lease = (await storage.grant([QUEUE], 10_000, "kit", now=NOW)).lease
        jobs = (await storage.claim(QUEUE, lease, 10, now=NOW)).jobs
        counts = (await storage.counts([QUEUE], now=NOW))[QUEUE]
        assert ["good"] == [job.id for job in jobs]
        assert (0, 1, 0, 0) == (counts.waiting, counts.active, counts.blocked, counts.failed)
        assert 0 == counts.retrying
        assert "priorities" not in {
            key.decode().rpartition(":")[2]
            async for key in client.scan_iter(f"{storage._queue_prefix(QUEUE)}*")
        }


async def fill_with_attributes(storage: Storage) -> tuple[str, int]:
    """Create ID and `good` with attributes. Their data begins with sections, and the payload is empty."""
    data = JobData(attributes={"n": b"1"})
    jobs = [NewJob(id=id, data=data) for id in (ID, "good")]
    await storage.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs], now=NOW)
    return (await storage.grant([QUEUE], 10_000, "kit", now=NOW)).lease, 0


@pytest.mark.parametrize("create", [fill_with_attributes, fill_retried], ids=lambda one: one.__name__)
async def test_a_cut_section_is_found_by_the_claim(
    opened: Callable[..., RedisStorage], client: Any, create: Callable[[Storage], Awaitable[tuple[str, int]]]
) -> None:
    """A claim that took the job would fail only when it decodes the reply, with all its jobs active."""
    async with opened(clock="manual") as storage:
        lease, _ = await create(storage)
        key = f"{storage._queue_prefix(QUEUE)}waiting"
        record = await client.hget(key, ID)
        await client.hset(key, ID, record[:-3])
        before = await storage.counts([QUEUE], now=NOW)

        with pytest.raises(StorageDamaged):
            await storage.claim(QUEUE, lease, 10, now=NOW)
        assert before == await storage.counts([QUEUE], now=NOW)


@pytest.mark.parametrize("verb", LEASE)
@pytest.mark.parametrize("damage", ["empty", "text", "ones"])
async def test_a_damaged_lease_is_named(
    opened: Callable[..., RedisStorage], client: Any, damage: str, verb: str
) -> None:
    async with opened(clock="manual") as storage:
        lease, fence = await fill_active(storage)
        await client.hset(f"{storage._queue_prefix(QUEUE)}leases", lease, DAMAGES[damage](b"x" * 9))

        with pytest.raises(StorageDamaged, match=f"lease '{lease}' in queue"):
            await LEASE[verb](storage, lease, fence)


@pytest.mark.parametrize("damage", ["empty", "text", "zeros", "ones"])
async def test_a_damaged_request_key_is_named(
    opened: Callable[..., RedisStorage], client: Any, damage: str
) -> None:
    async with opened(clock="manual") as storage:
        await storage.enqueue(QUEUE, [request("a", request_key="key")], now=NOW)
        key = f"{storage._queue_prefix(QUEUE)}keys"
        await client.hset(key, "key", DAMAGES[damage](await client.hget(key, "key")))

        with pytest.raises(StorageDamaged, match="request_key 'key' in queue"):
            await storage.enqueue(QUEUE, [request("b", request_key="key")], now=NOW)


@pytest.mark.parametrize("field", ["time", "numbers", "max_active", "log_age"])
async def test_a_damaged_field_of_a_queue_is_named(
    opened: Callable[..., RedisStorage], client: Any, field: str
) -> None:
    async with opened(clock="manual") as storage:
        lease, _ = await fill(storage)
        await storage.configure(QUEUE, SettingsPatch(log_age=1), now=NOW)
        await client.hset(f"{storage._queue_prefix(QUEUE)}meta", field, "damaged")

        for verb in (claim(), ENQUEUE, READS["get"]):
            with pytest.raises(StorageDamaged, match=f"'{field}' in queue"):
                await verb(storage, lease, 0)


@pytest.mark.parametrize("field", ["retention", "log_age", "log_level"])
async def test_a_damaged_setting_is_named(
    opened: Callable[..., RedisStorage], client: Any, field: str
) -> None:
    async with opened(clock="manual") as storage:
        await fill(storage)
        await client.hset(f"{storage._queue_prefix(QUEUE)}meta", field, "damaged")

        with pytest.raises(StorageDamaged, match=f"'{field}' in queue"):
            await storage.queues()


@pytest.mark.parametrize("entry", [b"", b"damaged", b"\0" * 7 + b"\1" + b"\0\0\0\1" + b"\xff" * 9])
async def test_a_damaged_log_entry_is_named(
    opened: Callable[..., RedisStorage], client: Any, entry: bytes
) -> None:
    async with opened(clock="manual") as storage:
        await storage.configure(QUEUE, SettingsPatch(log_level="all"), now=NOW)
        await client.xadd(f"{storage._queue_prefix(QUEUE)}log", {"e": entry}, id="9007199254740000-0")

        with pytest.raises(StorageDamaged, match="log entry '9007199254740000-0' in queue"):
            await storage.events(QUEUE, now=NOW)


async def test_a_missing_record_of_a_scheduled_job_is_named(
    opened: Callable[..., RedisStorage], client: Any
) -> None:
    """Its entry in the claim order would hide all entries behind it."""
    async with opened(clock="manual") as storage:
        lease, _ = await fill_scheduled(storage)
        await client.hdel(f"{storage._queue_prefix(QUEUE)}waiting", ID)

        with pytest.raises(StorageDamaged) as caught:
            await storage.claim(QUEUE, lease, 10, now=NOW)
        await storage.forget(QUEUE, [ID], now=NOW)
        jobs = (await storage.claim(QUEUE, lease, 10, now=NOW)).jobs
        assert repr(ID) in str(caught.value)
        assert ["good"] == [job.id for job in jobs]


async def test_a_missing_record_of_an_active_job_is_named(
    opened: Callable[..., RedisStorage], client: Any
) -> None:
    async with opened(clock="manual") as storage:
        await fill_active(storage)
        await client.hdel(f"{storage._queue_prefix(QUEUE)}active", ID)

        with pytest.raises(StorageDamaged) as caught:
            await storage.reap(QUEUE, 10, now=EXPIRED)
        await storage.forget(QUEUE, [ID], now=EXPIRED)
        assert repr(ID) in str(caught.value)
        assert ["good"] == [one.id for one in await storage.reap(QUEUE, 10, now=EXPIRED)]
