"""The fast path of an enqueue of one new job writes the same as the path of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dibs.errors import StorageDamaged
from dibs.model.job import Job, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import Complete, EnqueueRequest, Reject, SettingsPatch, Settlement
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

#: The commands that one enqueue of a new job runs in its script, with its reads, before and after its write.
COMMANDS = 10


PAYLOAD = b'{"width":200}'
#: Data with each section that the fast path takes as it is.
DATA = [
    JobData(payload=PAYLOAD),
    JobData(payload=PAYLOAD, retention=OutcomeRetention(completed=120_000)),
    JobData(payload=PAYLOAD, attributes={"size": b"7"}, overrides=Overrides(max_retries=3)),
]


def request(id: str, data: JobData = DATA[0]) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=data))


async def enqueue_each(storage: RedisStorage, queue: str, ids: Sequence[str]) -> None:
    for id in ids:
        await storage.enqueue(queue, [request(id)])


async def contents(storage: RedisStorage, start: str) -> dict[str, object]:
    """Return what the keys of a queue hold, without the numbers and times of its steps."""

    async def read(command: str, name: str, *words: object) -> list[bytes]:
        found: list[bytes] = await storage._run_command(start + name, command, start + name, *words)
        return found

    keys, meta, waiting = (
        await read("KEYS", "*"),
        await read("HGETALL", "meta"),
        await read("HGETALL", "waiting"),
    )
    return {
        "keys": sorted(key.removeprefix(start.encode()) for key in keys),
        "meta": sorted(meta[::2]),
        "waiting": sorted((id, len(record)) for id, record in zip(waiting[::2], waiting[1::2], strict=True)),
        "due": [entry[8:] for entry in await read("LRANGE", "due:0", 0, -1)],
        "priorities": await read("HGETALL", "priorities"),
        "claim_tokens": await read("LRANGE", "claim_tokens", 0, -1),
    }


def without_times(job: Job | None) -> Job:
    assert job is not None
    assert job.run_at == job.enqueued_at
    assert job.seq == job.first == job.revision
    return replace(job, seq=0, first=0, revision=0, run_at=0, enqueued_at=0)


@pytest.mark.parametrize("data", DATA, ids=["plain", "retention", "attributes"])
async def test_single_jobs_are_stored_like_a_batch(storage: RedisStorage, prefix: str, data: JobData) -> None:
    """The stored data equals that of a batch on its fast path, and on the general path (a wanted outcome)."""
    ids, queues = [f"{n}" for n in range(5)], ("single", "batch", "general")
    for queue in queues:
        await storage.enqueue(queue, [request("warm")])
    for id in ids:
        await storage.enqueue("single", [request(id, data)])
    await storage.enqueue("batch", [request(id, data) for id in ids])
    await storage.enqueue("general", [replace(request(id, data), want_outcome=True) for id in ids])

    single, *others = [await contents(storage, f"{prefix}:{{{queue}}}:") for queue in queues]
    assert [single] * 2 == others
    one, *more = [await storage.get(queue, ids) for queue in queues]
    for other in more:
        assert [without_times(slot.current) for slot in one] == [
            without_times(slot.current) for slot in other
        ]


@pytest.mark.parametrize("key", ["due:0", "priorities", "waiting", "active"])
async def test_a_key_of_another_type_fails_an_enqueue_that_changes_nothing(
    storage: RedisStorage, prefix: str, key: str
) -> None:
    await enqueue_each(storage, "q", ["warm"])
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
    """The fast path undoes its writes, and the general path puts the job into the ordered set."""
    start = f"{prefix}:{{q}}:"
    await enqueue_each(storage, "q", ["live"])
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


async def test_single_jobs_are_claimed_in_the_order_of_their_numbers(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    before = await storage.claim("q", lease, 1)
    ids = [f"{n}" for n in range(20)]
    answers = [(await storage.enqueue("q", [request(id)]))[0] for id in ids]
    revisions = [answer.revision for answer in answers]
    claim = await storage.claim("q", lease, 100)

    assert revisions == sorted(set(revisions))
    assert [(id, revision) for id, revision in zip(ids, revisions, strict=True)] == [
        (job.id, job.revision) for job in claim.jobs
    ]
    assert before.token != claim.token
    assert (await storage.wait(["q"], since={"q": before.token}, timeout=5.0)).woken


@pytest.mark.parametrize("data", DATA, ids=["plain", "retention", "attributes"])
async def test_an_enqueue_of_a_new_job_runs_few_commands(
    storage: RedisStorage, redis_server: RedisServer, data: JobData
) -> None:
    def commands() -> int:
        lines = redis_server.execute("INFO", "commandstats").splitlines()
        return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if "calls=" in line)

    await enqueue_each(storage, "q", ["warm"])
    begin = commands()
    own = commands() - begin
    for n in range(10):
        await storage.enqueue("q", [request(f"{n}", data)])

    assert (commands() - begin - 2 * own) <= 10 * (COMMANDS + 1)


@pytest.mark.parametrize("log_level", ["runs", "all"])
async def test_other_requests_take_the_general_path(storage: RedisStorage, log_level: str) -> None:
    """Known ids, log levels and new queues: the answer is that of a batch."""
    if log_level == "all":
        await storage.configure("q", SettingsPatch(log_level="all"))
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await enqueue_each(storage, "q", ["active", "waiting"])
    (job,) = (await storage.claim("q", lease, 1)).jobs
    answers = [(await storage.enqueue("q", [request(id)]))[0] for id in ("active", "waiting", "new")]
    assert [("blocked", "active"), ("updated", "waiting"), ("queued", "nothing")] == [
        (answer.status, answer.found) for answer in answers
    ]
    assert job.run is not None
    await storage.settle("q", [Settlement(id="active", fence=job.run.fence, action=Complete())])
    (late,) = await storage.enqueue("q", [replace(request("active"), on_conflict=Reject())])
    assert "duplicate" == late.status


async def test_a_job_after_its_end_is_new_again(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    for _ in range(2):
        (answer,) = await storage.enqueue("q", [request("a")])
        (job,) = (await storage.claim("q", lease, 1)).jobs
        assert ("queued", "nothing", answer.revision) == (answer.status, answer.found, job.revision)
        assert job.run is not None
        await storage.settle("q", [Settlement(id="a", fence=job.run.fence, action=Complete())])
