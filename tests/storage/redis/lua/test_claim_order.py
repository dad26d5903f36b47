"""Claim order over lists and sets, stale entries, listings, and the fast paths of Lua."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from dibs.client.options.arguments import new_id
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, JobPatch, SettingsPatch, Settlement
from dibs.storage.redis import RedisStorage, listing, open_url
from dibs_conformance.servers import RedisServer, start_redis


def request(id: str, *, priority: int = 0, **more: int) -> EnqueueRequest:
    return EnqueueRequest(
        job=NewJob(id=id, data=JobData(payload=b'{"width":200}', priority=priority), **more)
    )


async def everything(storage: RedisStorage, size: int = 7) -> list[str]:
    lease = (await storage.grant(["q"], 600_000, "me")).lease
    taken: list[str] = []
    while jobs := (await storage.claim("q", lease, size)).jobs:
        taken += [job.id for job in jobs]
    return taken


async def test_the_order_holds_over_lists_and_sets(storage: RedisStorage) -> None:
    """New jobs are in lists, changed and scheduled jobs in sets; a claim takes the smaller head."""
    chance = random.Random(7)
    for i in range(300):
        id = f"j{chance.randrange(150)}"
        priority = chance.choice([-5, 0, 0, 0, 9])
        await storage.enqueue("q", [request(id, priority=priority, delay=chance.choice([0, 0, 1, 3]))])
        if i % 7 == 0:
            await storage.amend("q", f"j{chance.randrange(150)}", JobPatch(priority=1))
        if i % 11 == 0:
            await storage.cancel("q", [f"j{chance.randrange(150)}"])
    await asyncio.sleep(0.01)
    page = await storage.list("q", "waiting", limit=1000)
    jobs = [slot.current for _, slot in page.items if slot.current is not None]
    jobs.sort(key=lambda job: (-job.data.priority, job.run_at, job.seq))

    assert [job.id for job in jobs] == await everything(storage)


async def test_the_fast_path_claims_from_the_lists_of_several_priorities(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    """A scheduled job of a higher priority does not change this. The first byte of a record is its form."""
    await storage.enqueue("q", [request("late", priority=9, delay=60_000)])
    await storage.enqueue("q", [request(f"{n}", priority=n % 3) for n in range(9)])
    lease = (await storage.grant(["q"], 600_000, "me")).lease

    jobs = (await storage.claim("q", lease, 5)).jobs
    assert ["2", "5", "8", "1", "4"] == [job.id for job in jobs]
    records = redis_server.execute("HVALS", f"{prefix}:{{q}}:active")
    assert ['"'] * 5 == [record[0] for record in records]
    assert ["7", "0", "3", "6"] == [job.id for job in (await storage.claim("q", lease, 5)).jobs]


async def test_many_stale_entries_are_skipped_in_bounded_steps(storage: RedisStorage) -> None:
    await storage.enqueue("q", [request("first")])
    for _ in range(12):
        ids = [f"s{i}" for i in range(1000)]
        await storage.enqueue("q", [request(id) for id in ids])
        await storage.cancel("q", ids)
    await storage.enqueue("q", [request("last")])

    assert ["first", "last"] == await everything(storage, size=1)


async def test_a_list_with_only_stale_entries_is_deleted(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    for _ in range(3):
        await storage.enqueue("q", [request("a")])
        await storage.cancel("q", ["a"])

    assert 0 == redis_server.execute("EXISTS", f"{prefix}:{{q}}:due:0", f"{prefix}:{{q}}:priorities")


async def test_updates_without_claims_do_not_grow_the_list(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    await storage.enqueue("q", [request("stays")])
    for _ in range(6):
        await storage.enqueue("q", [request(f"s{i}") for i in range(1000)])
        await storage.cancel("q", [f"s{i}" for i in range(1000)])

    assert redis_server.execute("LLEN", f"{prefix}:{{q}}:due:0") <= 2 * 1000 + 1000


async def test_a_list_of_stale_entries_gets_no_more(storage: RedisStorage, prefix: str) -> None:
    start = f"{prefix}:{{q}}:"
    await storage.enqueue("q", [request("live")])
    for first in range(0, 1010, 101):
        ids = [f"{n}" for n in range(first, first + 101)]
        await storage.enqueue("q", [request(id) for id in ids])
        await storage.cancel("q", ids)
    length = await storage._run_command(start, "LLEN", start + "due:0")
    await storage.enqueue("q", [request("new")])

    assert length == await storage._run_command(start, "LLEN", start + "due:0")
    assert 1 == await storage._run_command(start, "ZCARD", start + "line:0")
    assert ["live", "new"] == await everything(storage)


async def test_a_claim_that_reaches_its_limit_releases_the_next_blocking_claim(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await storage.enqueue("q", [request("a"), request("b")])
    await storage.claim_blocking("q", lease, 1, claim_id="a", timeout=5.0)
    assert 1 == redis_server.execute("LLEN", f"{prefix}:{{q}}:claim_tokens")

    assert 1 == len((await storage.claim_blocking("q", lease, 1, claim_id="b", timeout=5.0)).jobs)
    assert 0 == redis_server.execute("LLEN", f"{prefix}:{{q}}:claim_tokens")


async def test_a_claim_of_thousands_is_made_in_steps(storage: RedisStorage) -> None:
    for start in range(0, 2500, 500):
        await storage.enqueue("q", [request(f"{start + i:05}") for i in range(500)])
    lease = (await storage.grant(["q"], 60_000, "me")).lease

    jobs = (await storage.claim("q", lease, 2200)).jobs
    assert [f"{i:05}" for i in range(2200)] == [job.id for job in jobs]


async def test_the_parts_of_a_split_share_one_sorted_set(
    storage: RedisStorage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts use one sorted set; otherwise each part would scan the whole queue."""
    monkeypatch.setattr(listing, "MAX_UNSORTED", 100)
    await storage.enqueue("q", [request(f"{i:03}") for i in range(400)])
    cuts = [*await storage.split("q", 4)]
    pages = [
        await storage.export("q", after=after, until=until, limit=400)
        for after, until in zip([None, *cuts], [*cuts, None], strict=True)
    ]
    listing_prefix = f"{prefix}:{{q}}:listing:"
    made = await storage._run_command(listing_prefix, "KEYS", f"{listing_prefix}*")

    assert [100] * 4 == [len(page.records) for page in pages]
    assert 1 == len(made)


async def test_the_fast_paths_write_the_same_as_the_general_path(storage: RedisStorage) -> None:
    """log_results and the log level `all` need the general path: it writes the same slots and outcomes."""
    slots = []
    for queue, settings in (
        ("quick", SettingsPatch()),
        ("general", SettingsPatch(log_results=4096, log_level="all")),
    ):
        await storage.configure(queue, settings)
        await storage.enqueue(queue, [request("a", priority=3)])
        lease = (await storage.grant([queue], 60_000, "me")).lease
        (waiting,) = await storage.get(queue, ["a"])
        (job,) = (await storage.claim(queue, lease, 1)).jobs
        assert job.run is not None
        await storage.settle(queue, [Settlement(id="a", fence=job.run.fence, action=Complete(result=b"1"))])
        (ended,) = await storage.get(queue, ["a"])
        assert waiting.current is not None
        assert ended.outcome is not None
        same = {"run_at": 0, "enqueued_at": 0, "first": 0, "revision": 0}
        times = {"ended_at": 0, "claimed_at": 0, "fence": 0}
        assert 3_600_000 == (ended.outcome.expires_at or 0) - ended.outcome.ended_at
        slots.append((
            replace(waiting.current, seq=0, **same), replace(ended.outcome, expires_at=0, **same, **times)
        ))  # fmt: skip

    assert slots[0] == slots[1]


async def test_an_end_with_a_retention_of_none_leaves_no_key_that_lasts(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    """Both paths write no outcome and no expiry, and remove the outcome of an earlier run."""
    for queue, settings in (("quick", SettingsPatch()), ("general", SettingsPatch(log_results=4096))):
        lease = (await storage.grant([queue], 60_000, "me")).lease
        for completed in (3_600_000, 0):
            patch = replace(settings, retention=OutcomeRetention(completed=completed), log_level="off")
            await storage.configure(queue, patch)
            await storage.enqueue(queue, [request("a")])
            (job,) = (await storage.claim(queue, lease, 1)).jobs
            assert job.run is not None
            end = Settlement(id="a", fence=job.run.fence, action=Complete(result=b"1"))
            assert ["done"] == [one.status for one in await storage.settle(queue, [end])]
        assert (await storage.get(queue, ["a"]))[0].outcome is None
        start = f"{prefix}:{{{queue}}}:"
        left = {key.removeprefix(start) for key in redis_server.execute("KEYS", f"{start}*")}
        assert {"meta", "leases", "lease_ends", "claim_tokens"} >= left - {"classes", "class_ends"}


async def test_a_batch_takes_the_fast_path_except_for_known_ids(storage: RedisStorage) -> None:
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await storage.enqueue("q", [request("active")])
    await storage.claim("q", lease, 1)
    await storage.enqueue("q", [request("waiting")])
    jobs = [
        NewJob(id=id, data=JobData(payload=f"{index}".encode()))
        for index, id in enumerate(["new", "waiting", "twice", "active", "twice", "last"])
    ]
    answers = await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])

    assert [answer.status for answer in answers] == [
        "queued", "updated", "queued", "blocked", "updated", "queued"
    ]  # fmt: skip
    assert [answer.found for answer in answers] == [
        "nothing", "waiting", "nothing", "active", "waiting", "nothing"
    ]  # fmt: skip
    revisions = [answer.revision for answer in answers]
    assert revisions == sorted(set(revisions))
    claimed = (await storage.claim("q", lease, 9)).jobs
    assert {("new", b"0", 1), ("waiting", b"1", 2), ("twice", b"4", 2), ("last", b"5", 1)} == {
        (job.id, job.data.payload, job.enqueues) for job in claimed
    }
    assert (await storage.counts(["q"]))["q"].waiting == 0


async def test_ten_thousand_waiting_jobs_fit_in_a_little_memory() -> None:
    with start_redis() as server:

        def used() -> int:
            return int(server.execute("INFO", "memory").partition("used_memory:")[2].split()[0])

        async with open_url(server.url) as storage:
            await storage.enqueue("warm", [request(new_id())])
            before = used()
            for _ in range(100):
                await storage.enqueue("q", [request(new_id()) for _ in range(100)])
            await asyncio.sleep(0.5)
            mib = (used() - before) / 2**20
    print(f"10,000 waiting jobs: {mib:.2f} MiB on Redis {server.version}")  # noqa: T201 - a figure for people

    assert mib < 1.9
