"""Large payloads: each key `payload:NAME` belongs to one record, and goes with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from dibs.errors import StorageDamaged, StorageUnavailable
from dibs.model.check_jobs import CheckedBatch
from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.storage.protocol import Clock
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.codec import requests
from dibs_conformance.servers import RedisServer
from tests.kit.mutants.lua import planted
from tests.kit.play import play

LARGE = 4096
NOW, LATER, TTL = 1_000_000, 2_000_000, 60_000
KEPT = OutcomeRetention(keep_payload=("completed", "failed", "cancelled"))


def large(text: str, size: int = LARGE + 1) -> bytes:
    return text.encode().ljust(size, b".")


def request(id: str = "a", payload: bytes | None = None, **fields: object) -> EnqueueRequest:
    data = JobData(payload=large(id) if payload is None else payload)
    return EnqueueRequest(job=NewJob(id=id, data=data), **fields)  # type: ignore[arg-type]


async def stored_payloads(storage: RedisStorage) -> dict[bytes, bytes]:
    """Return the values of all keys `payload:NAME` of a storage."""
    assert storage._calls is not None
    servers = storage._calls.servers
    keys = await servers.scan_keys(f"{storage._prefix}:*payload:*")
    return {key: await servers.call(key.decode(), "GET", key) for key in keys}


async def check_references(storage: RedisStorage) -> None:
    """Check that each key is the payload of one record. A record without its payload fails in the kit."""
    assert storage._calls is not None
    for key, payload in (await stored_payloads(storage)).items():
        prefix, _, name = key.decode().rpartition("payload:")
        reference, count = name.encode() + len(payload).to_bytes(4), 0
        for records in ("waiting", "active", "successors", "outcomes"):
            values = await storage._calls.servers.call(prefix, "HVALS", prefix + records)
            count += sum(value.endswith(reference) for value in values)
        assert 1 == count, f"{count} records refer to {key!r}"
        assert -1 == await storage._calls.servers.call(prefix, "PTTL", key), f"{key!r} expires"


@pytest.fixture
async def manual(redis_server: RedisServer, prefix: str) -> AsyncIterator[RedisStorage]:
    async with open_url(redis_server.url, prefix=prefix, clock="manual") as storage:
        yield storage


Act = Callable[[RedisStorage, str, int], Awaitable[object]]


def settle(action: SettleAction) -> Act:
    return lambda s, _, fence: s.settle("q", [Settlement(id="a", fence=fence, action=action)], now=NOW)


def enqueue(*requests: EnqueueRequest) -> Act:
    return lambda s, *_: s.enqueue("q", requests, now=NOW)


FAIL = Fail(error=Error(type="E"))
NEWER = request(payload=large("newer"))
KEEPING = request(payload=large("x"), on_conflict=Update(data=False))
SUPERSEDING = request(payload=large("newer"), on_conflict=Update(supersede=True))
SIGNAL = EnqueueRequest(
    job=NewJob(id="a", data=JobData(attributes={"x": b"1"})), on_conflict=Update(create=False)
)
REPEATED = request("c", request_key="k")

#: By name: what happens to the job `a` while it runs, and the payloads that are left.
WHILE_ACTIVE: dict[str, tuple[list[Act], list[str]]] = {
    "nothing": ([], ["a"]),
    "complete": ([settle(Complete())], []),
    "complete, kept": ([settle(Complete(retention=KEPT))], ["a"]),
    "complete with a result": ([settle(Complete(result=b"1"))], []),
    "fail": ([settle(FAIL)], ["a"]),
    "fail, not kept": ([settle(Fail(error=FAIL.error, retention=OutcomeRetention(failed=0)))], []),
    "fail, retried": ([settle(FAIL), lambda s, *_: s.retry_failed("q", ["a"], now=NOW)], ["a"]),
    "fail, expired": ([settle(FAIL), lambda s, *_: s.prune("q", 9, now=NOW + 10**9)], []),
    "fail, forgotten": ([settle(FAIL), lambda s, *_: s.forget("q", ["a"], now=NOW)], []),
    "fail, enqueued": ([settle(FAIL), enqueue(NEWER)], ["a", "newer"]),
    "cancelled": ([settle(Cancelled())], []),
    "retry": ([settle(RetryLater())], ["a"]),
    "release": ([settle(Release())], ["a"]),
    "parked": ([settle(Release(delay=10, parked=True))], ["a"]),
    "reaped": ([lambda s, *_: s.reap("q", 9, now=LATER)], ["a"]),
    "dropped": ([lambda s, lease, _: s.drop(["q"], lease, 9, now=NOW)], ["a"]),
    "handed off": ([settle(HandOff())], ["a"]),
    "finished": ([settle(HandOff()), lambda s, *_: s.finish("q", "a", Complete(), NOW * 1000, now=NOW)], []),
    "memo": ([lambda s, _, fence: s.report("q", "a", fence, memo=b"1", now=NOW)], ["a"]),
    "cancel": ([lambda s, *_: s.cancel("q", ["a"], running=True, now=NOW)], ["a"]),
    "cancel, returned": (
        [lambda s, *_: s.cancel("q", ["a"], running=True, now=NOW), settle(RetryLater())], []
    ),
    "forget": ([lambda s, *_: s.forget("q", ["a"], now=NOW)], []),
    "blocked": ([enqueue(NEWER)], ["a", "newer"]),
    "blocked, replaced": ([enqueue(NEWER), enqueue(request(payload=large("third")))], ["a", "third"]),
    "blocked, small": ([enqueue(NEWER), enqueue(request(payload=b"1"))], ["a"]),
    "blocked, kept data": ([enqueue(NEWER), enqueue(KEEPING)], ["a", "newer"]),
    "blocked, complete": ([enqueue(NEWER), settle(Complete())], ["newer"]),
    "blocked, fail": ([enqueue(NEWER), settle(FAIL)], ["a", "newer"]),
    "blocked, retry": ([enqueue(NEWER), settle(RetryLater())], ["newer"]),
    "blocked without data, retry": ([enqueue(KEEPING), settle(RetryLater())], ["a"]),
    "blocked, cancelled": ([enqueue(NEWER), lambda s, *_: s.cancel("q", ["a"], now=NOW)], ["a"]),
    "blocked, amended": (
        [enqueue(NEWER), lambda s, *_: s.amend("q", "a", JobPatch(attributes={"x": b"1"}), now=NOW)],
        ["a", "newer"],
    ),
    "signal": ([enqueue(SIGNAL)], ["a"]),
    "rejected": ([enqueue(request(payload=large("x"), on_conflict=Reject()))], ["a"]),
    "superseded": ([settle(HandOff()), enqueue(SUPERSEDING)], ["newer"]),
    "follow-up": (
        [settle(Complete(then=(FollowUp(queue="q", job=NewJob(id="b", data=JobData(payload=large("b")))),)))],
        ["b"],
    ),
}  # fmt: skip

#: By name: what happens to the job `a` while it waits, and the payloads that are left.
WHILE_WAITING: dict[str, tuple[list[Act], list[str]]] = {
    "nothing": ([], ["a"]),
    "updated": ([enqueue(NEWER)], ["newer"]),
    "updated, small": ([enqueue(request(payload=b"1"))], []),
    "updated twice in a batch": ([enqueue(NEWER, request(payload=large("third")))], ["third"]),
    "new and updated in a batch": ([enqueue(request("b"), request("b", large("newer")))], ["a", "newer"]),
    "new, then small in a batch": ([enqueue(request("b"), request("b", b"1"))], ["a"]),
    "kept data": ([enqueue(KEEPING)], ["a"]),
    "rejected": ([enqueue(request(payload=large("x"), on_conflict=Reject()))], ["a"]),
    "amended": ([lambda s, *_: s.amend("q", "a", JobPatch(payload=large("newer")), now=NOW)], ["newer"]),
    "amended, small": ([lambda s, *_: s.amend("q", "a", JobPatch(payload=b"1"), now=NOW)], []),
    "amended, priority": ([lambda s, *_: s.amend("q", "a", JobPatch(priority=3), now=NOW)], ["a"]),
    "cancelled": ([lambda s, *_: s.cancel("q", ["a"], now=NOW)], []),
    "forgotten": ([lambda s, *_: s.forget("q", ["a"], now=NOW)], []),
    "no room": (
        [lambda s, *_: s.configure("q", SettingsPatch(max_waiting=1), now=NOW), enqueue(request("b"))], ["a"]
    ),
    "request key": ([enqueue(request("b", request_key="k")), enqueue(REPEATED)], ["a", "b"]),
}  # fmt: skip


async def check_left(storage: RedisStorage, left: list[str]) -> None:
    assert Counter(map(large, left)) == Counter((await stored_payloads(storage)).values())
    await check_references(storage)
    page = await storage.export("q")
    await storage.forget("q", [record.id for record in page.records])
    assert not await stored_payloads(storage)


@pytest.mark.parametrize("case", WHILE_ACTIVE)
async def test_a_payload_lasts_as_long_as_its_run_and_outcome(manual: RedisStorage, case: str) -> None:
    acts, left = WHILE_ACTIVE[case]
    await manual.enqueue("q", [request()], now=NOW)
    lease = (await manual.grant(["q"], TTL, "me", now=NOW)).lease
    (job,) = (await manual.claim("q", lease, 9, now=NOW)).jobs
    assert job.run is not None
    for act in acts:
        await act(manual, lease, job.run.fence)

    assert large("a") == job.data.payload
    await check_left(manual, left)


@pytest.mark.parametrize("case", WHILE_WAITING)
@pytest.mark.parametrize("delay", [None, 5])
async def test_a_payload_lasts_as_long_as_its_waiting_job(
    manual: RedisStorage, case: str, delay: int | None
) -> None:
    acts, left = WHILE_WAITING[case]
    first = request()
    await manual.enqueue("q", [EnqueueRequest(job=NewJob(id="a", data=first.job.data, delay=delay))], now=NOW)
    for act in acts:
        await act(manual, "", 0)

    await check_left(manual, left)


class CheckedStorage(RedisStorage):
    """A storage that compares the keys with the records before it closes."""

    async def close(self) -> None:
        try:
            if self._calls is not None:
                await check_references(self)
        finally:
            await super().close()


def open_checked(url: str) -> Callable[[str, Clock], RedisStorage]:
    return lambda location, clock: CheckedStorage(url, prefix=location, clock=clock)


def plant_small_limit(patch: pytest.MonkeyPatch) -> None:
    """Store every payload by reference, also one of a byte."""
    planted("include/payloads", "local LARGE = 4096", "local LARGE = 0")(patch)
    patch.setattr(requests, "LARGE", 0)


@pytest.mark.long
@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.certify)])
def test_random_histories_keep_the_payloads_of_all_records(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    plant_small_limit(monkeypatch)

    failure, _ = play(
        examples, target=open_checked(redis_server.url), durable=True, walkthrough=examples > 15
    )
    assert failure is None, "\n".join((failure.why, *failure.story))


#: By name: a file, a line, and what takes its place.
BUGS: dict[str, tuple[str, str, str]] = {
    "an update leaves the older payload": (
        "include/payloads",
        "    if not used[reference] then unused",
        "    if not used[reference] and false then unused",
    ),
    "a completion leaves the payload": (
        "include/complete_claimed",
        "    if data_flags >= BY_REFERENCE then",
        "    if false then",
    ),
    "a payload is written that no record has": (
        "include/payloads",
        "    if used[reference] then\n",
        "    if true then\n",
    ),
    "the payload of a job expires": (
        "include/payloads",
        "if payload == true then call('PERSIST', key) else",
        "if payload ~= true then",
    ),
    "a payload goes while a record has it": (
        "include/payloads",
        "    if not used[reference] then unused",
        "    if true then unused",
    ),
    "a payload takes the place of another one": (
        "include/payloads",
        "string.format('%020.0f', next_number(queue))",
        "string.format('%020.0f', queue.now)",
    ),
    "a fail job shares the payload of its job": (
        "include/settle_one",
        "local payload = split_data(whole_data(queue, job.data, 'job', job.id)).payload",
        "local payload = sub(job.data, 2)",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_random_histories_find_a_planted_bug(
    bug: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_small_limit(monkeypatch)
    planted(*BUGS[bug])(monkeypatch)

    failure, _ = play(60, target=open_checked(redis_server.url), durable=True)
    assert failure is not None


async def test_an_enqueue_without_its_payload_stores_no_job(redis_server: RedisServer, prefix: str) -> None:
    class Forgetful(RedisStorage):
        def _payload_commands(self, queue: str, payloads: Mapping[str, bytes]) -> list[tuple[Any, ...]]:
            return []

    async with Forgetful(redis_server.url, prefix=prefix) as storage:
        with pytest.raises(StorageUnavailable, match="a payload that was sent ahead of its job is gone"):
            await storage.enqueue("q", [request()])
        assert 0 == (await storage.counts(["q"]))["q"].waiting


async def test_a_payload_without_a_job_expires(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    """As if the client was killed between the payload and its job."""
    ((*command, age),) = storage._payload_commands("q", {"name": large("a")})
    assert 600 == age
    redis_server.execute(*command, "1")
    assert 1 == redis_server.execute("TTL", f"{prefix}:{{q}}:payload:name")


async def test_a_direct_enqueue_sends_its_payload(storage: RedisStorage) -> None:
    await storage.enqueue("q", [request("b")])
    ended = asyncio.get_running_loop().create_future()
    batch = CheckedBatch.of([request(), request("small", b"1")], storage.limits, plain=True)

    assert storage.start_enqueue("q", batch, ended.set_result)
    assert ["queued", "queued"] == [one.status for one in await ended]
    await check_references(storage)
    assert {large("a"), large("b")} == set((await stored_payloads(storage)).values())


async def test_a_claim_takes_no_job_whose_payload_is_missing(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    await storage.enqueue("q", [request()])
    (key,) = redis_server.execute("KEYS", f"{prefix}:*payload:*")
    redis_server.execute("DEL", key)
    lease = (await storage.grant(["q"], TTL, "me")).lease

    for call in (storage.claim("q", lease, 1), storage.get("q", ["a"])):
        with pytest.raises(StorageDamaged, match="the record of job 'a' in queue 'q' is damaged"):
            await call
    assert 0 == (await storage.counts(["q"]))["q"].active
    assert [True] == await storage.forget("q", ["a"])


class LateStorage(RedisStorage):
    """A storage whose job `gone` ends between its claim and the read of its payload."""

    async def _read_payloads(self, queue: str, references: bytes) -> list[bytes | None]:
        await self.forget(queue, ["gone"])
        return await super()._read_payloads(queue, references)


async def test_a_claim_leaves_out_a_run_that_ends_before_its_payload_is_read(
    redis_server: RedisServer, prefix: str
) -> None:
    async with LateStorage(redis_server.url, prefix=prefix) as storage:
        await storage.enqueue("q", [request("gone"), request("small", b"1"), request("b")])
        lease = (await storage.grant(["q"], TTL, "me")).lease
        claimed = await storage.claim("q", lease, 9)

    assert [("small", b"1"), ("b", large("b"))] == [(job.id, job.data.payload) for job in claimed.jobs]
