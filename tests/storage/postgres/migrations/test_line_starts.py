"""The start of each line: claims begin there, so jobs that were claimed before cost them nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    JobPatch,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.storage.postgres import PostgresStorage, line_starts
from tests.storage.postgres.jobs import asked, done, leased
from tests.storage.postgres.migrations.test_plan import touched

Connect = Callable[[], Any]

CLAIM = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM claim(ARRAY['q'], ARRAY[50], %s::uuid, NULL)
"""
#: Waiting jobs below the start of their line: no claim would ever find them.
HIDDEN = """
SELECT l.id FROM live l LEFT JOIN LATERAL lines_of(l.q) w ON w.priority = l.priority
WHERE l.state = 'w' AND l.fence IS NULL AND (w.run_at IS NULL OR (l.run_at, l.seq) < (w.run_at, w.seq))
"""
STARTS = "SELECT run_at FROM lines_of(1)"


async def rows(connection: Any, query: str, *params: Any) -> list[Any]:
    found = await (await connection.execute(query, params)).fetchall()
    await connection.commit()
    return list(found)


async def pass_jobs(storage: PostgresStorage, lease: str, many: int) -> None:
    """Enqueue, claim and complete many jobs in batches of 1,000."""
    for start in range(0, many, 1000):
        await storage.enqueue("q", [asked(f"passed{number}") for number in range(start, start + 1000)])
        jobs = (await storage.claim("q", lease, 1000)).jobs
        assert 1000 == len(jobs)
        await storage.settle("q", [done(job) for job in jobs])


async def test_a_claim_steps_over_no_job_that_was_claimed_under_an_old_snapshot(
    storage: PostgresStorage, connect: Connect
) -> None:
    """Without the start, a claim reads an index entry and its row for each of the 20,000 jobs."""
    lease = await leased(storage)
    await pass_jobs(storage, lease, 1000)
    connection, report = await connect(), await connect()
    await report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    await report.execute("SELECT count(*) FROM live")
    await pass_jobs(storage, lease, 20_000)
    await storage._starts.run(["q"])
    await storage.enqueue("q", [asked(f"job{number}") for number in range(200)])
    reads = []
    for _ in range(3):
        ((found,),) = await rows(connection, CLAIM, lease)
        assert 2 == found[0]["Plan"]["Actual Rows"]
        reads.append(touched(found[0]["Plan"]))

    assert 2_000 > min(reads)
    await report.rollback()


async def test_a_worker_raises_the_starts(storage: PostgresStorage, connect: Connect) -> None:
    connection = await connect()
    await storage.enqueue("q", [asked("a", run_at=5)])
    assert [(0,)] == await rows(connection, STARTS)
    await pass_jobs(storage, await leased(storage), 2000)
    assert storage._starts._task is not None
    await storage._starts._task

    ((start,),) = await rows(connection, STARTS)
    assert start > 5


async def test_claims_of_one_job_raise_the_starts_above_the_active_jobs(
    storage: PostgresStorage, connect: Connect
) -> None:
    """The jobs stay active, so each claim reads the rows of those claimed since the last raise."""
    connection = await connect()
    await storage.enqueue("q", [asked(f"job{number}") for number in range(150)])
    lease = await leased(storage)
    for _ in range(100):
        assert 1 == len((await storage.claim("q", lease, 1)).jobs)
    assert storage._starts._task is not None
    await storage._starts._task
    below = await rows(
        connection, "SELECT count(*) FROM live l, lines_of(l.q) w WHERE (l.run_at, l.seq) < (w.run_at, w.seq)"
    )

    assert 89 <= below[0][0] <= 100


async def test_a_job_below_the_start_is_claimed_first(storage: PostgresStorage, connect: Connect) -> None:
    lease = await leased(storage)
    await storage.enqueue("q", [asked("a"), asked("b"), asked("c")])
    released, retried, later = (await storage.claim("q", lease, 3)).jobs
    await storage.enqueue("q", [asked("moved"), asked("last")])
    await storage._starts.run(["q"])
    await storage.amend("q", "moved", JobPatch(run_at=7))
    await storage.enqueue("q", [asked("past", run_at=5)])
    assert released.run is not None
    assert retried.run is not None
    await storage.settle(
        "q",
        [
            Settlement(id="a", fence=released.run.fence, action=Release()),
            Settlement(id="b", fence=retried.run.fence, action=RetryLater(run_at=6)),
        ],
    )
    await storage.enqueue("q", [asked("c", run_at=8)])
    await storage.settle("q", [done(later)])

    claim = await storage.claim("q", lease, 10)
    assert ["past", "b", "moved", "c", "a", "last"] == [job.id for job in claim.jobs]


async def test_a_job_that_its_key_held_back_is_claimed(storage: PostgresStorage) -> None:
    data = JobData(payload=b"1", key="k")
    await storage.configure("q", SettingsPatch(per_key=1))
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=data, run_at=5)) for id in "ab"])
    lease = await leased(storage)
    first = (await storage.claim("q", lease, 10)).jobs
    for _ in range(2):
        await storage._starts.run(["q"])
    await storage.settle("q", [done(job) for job in first])

    assert ["b"] == [job.id for job in (await storage.claim("q", lease, 10)).jobs]


#: The times of the storage: before the starts rise, after it, and when the lease has expired.
EARLY, LATE, EXPIRED = 1_000, 3_000, 601_000


class Change:
    """The calls that make a job wait below the start of its line, at the time LATE."""

    def __init__(self, storage: PostgresStorage, active: Settlement) -> None:
        self.storage, self.active = storage, active

    async def enqueue(self, *requests: EnqueueRequest) -> None:
        await self.storage.enqueue("q", requests, now=LATE)

    async def settle(self, action: SettleAction) -> None:
        await self.storage.settle("q", [structs.replace(self.active, action=action)], now=LATE)

    async def promote(self) -> None:
        await self.enqueue(asked("active"))
        await self.settle(Complete())

    async def amend(self) -> None:
        await self.storage.amend("q", "waits", JobPatch(run_at=7), now=LATE)

    async def reap(self) -> None:
        await self.storage.reap("q", 10, now=EXPIRED)

    async def retry_failed(self) -> None:
        await self.storage.retry_failed("q", ["failed"], now=LATE)

    async def import_one(self) -> None:
        await self.storage.import_("q", (await self.storage.export("other")).records, now=LATE)


#: Each statement that makes a job wait, with the id of that job.
WAITS: dict[str, tuple[str, Callable[[Change], Awaitable[None]]]] = {
    "a plain request": ("new", lambda at: at.enqueue(asked("new"))),
    "plain requests": ("new", lambda at: at.enqueue(asked("new"), asked("newer"))),
    "requests with times": (
        "new",
        lambda at: at.enqueue(asked("later", run_at=9_000_000), asked("new", run_at=7)),
    ),
    "a request for a live job": ("waits", lambda at: at.enqueue(asked("waits", run_at=7))),
    "a new job beside a live one": (
        "new",
        lambda at: at.enqueue(asked("waits", run_at=9_000_000), asked("new")),
    ),
    "an amend": ("waits", Change.amend),
    "a successor": ("active", Change.promote),
    "a release": ("active", lambda at: at.settle(Release())),
    "a retry": ("active", lambda at: at.settle(RetryLater(run_at=LATE))),
    "an expired lease": ("active", Change.reap),
    "a retry of a failed job": ("failed", Change.retry_failed),
    "an import": ("imported", Change.import_one),
    "a free key": ("held back", lambda at: at.settle(Complete())),
}


@pytest.mark.parametrize("change", WAITS)
async def test_each_statement_that_makes_a_job_wait_lowers_the_start(
    opening: Callable[..., PostgresStorage], connect: Connect, change: str
) -> None:
    waits, statement = WAITS[change]
    async with opening(clock="manual") as storage:
        lease = (await storage.grant(["q"], 600_000, "test", now=EARLY)).lease
        await storage.configure("q", SettingsPatch(per_key=1), now=EARLY)
        await storage.enqueue("other", [asked("imported", run_at=7)], now=EARLY)
        keyed = JobData(payload=b"1", key="k")
        jobs = [NewJob(id=id, data=keyed) for id in ("active", "held back")][
            : 2 if waits == "held back" else 1
        ]
        await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs] + [asked("failed")], now=EARLY)
        await storage.enqueue("q", [asked("waits", run_at=8_000_000)], now=EARLY)
        runs = {job.id: done(job) for job in (await storage.claim("q", lease, 10, now=EARLY)).jobs}
        assert {"active", "failed"} == runs.keys()
        fails = Fail(error=Error(type="Broken"))
        await storage.settle("q", [structs.replace(runs["failed"], action=fails)], now=EARLY)
        for now in (EARLY, LATE):
            storage._starts._now = now
            await storage._starts.run(["q"])
        connection = await connect()
        assert [(8_000_000,)] == await rows(connection, STARTS)

        await statement(Change(storage, runs["active"]))

        assert [] == await rows(connection, HIDDEN)
        lease = (await storage.grant(["q"], 600_000, "test", now=EXPIRED)).lease
        claim = await storage.claim("q", lease, 10, now=EXPIRED)
        assert waits in {job.id for job in claim.jobs}


async def test_a_transaction_with_an_old_snapshot_lowers_the_start_that_it_cannot_see(
    storage: PostgresStorage, connect: Connect
) -> None:
    lease = await leased(storage)
    await storage.enqueue("q", [asked("a")])
    caller = await connect()
    await caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    await caller.execute("SELECT count(*) FROM live")
    await storage.claim("q", lease, 1)
    await storage._starts.run(["q"])
    await storage.in_transaction(caller).enqueue("q", [asked("late", run_at=5)])
    await caller.commit()

    assert [] == await rows(await connect(), HIDDEN)
    assert ["late"] == [job.id for job in (await storage.claim("q", lease, 9)).jobs]


async def test_the_priorities_that_are_not_used_any_more_are_closed(
    opening: Callable[..., PostgresStorage], connect: Connect
) -> None:
    async with opening(clock="manual") as storage:
        lease = (await storage.grant(["q"], 600_000, "test", now=1000)).lease
        data = [JobData(payload=b"1", priority=level) for level in range(30)]
        jobs = [NewJob(id=f"{one.priority}", data=one) for one in data]
        await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs], now=1000)
        claim = await storage.claim("q", lease, 30, now=1000)
        assert [str(level) for level in reversed(range(30))] == [job.id for job in claim.jobs]
        connection = await connect()
        assert 30 == len(await rows(connection, STARTS))
        for now in (1000, 3000):
            storage._starts._now = now
            await storage._starts.run(["q"])
        assert [] == await rows(connection, STARTS)
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="again", data=data[7]))], now=3000)

        assert [(3000,)] == await rows(connection, STARTS)
        assert ["again"] == [job.id for job in (await storage.claim("q", lease, 9, now=3000)).jobs]


async def test_a_raise_waits_for_open_transactions(storage: PostgresStorage, connect: Connect) -> None:
    """The job of the open transaction is below the new start, and nobody else can see it yet."""
    lease = await leased(storage)
    await storage.enqueue("q", [asked("a")])
    connection, caller = await connect(), await connect()
    await storage.in_transaction(caller).enqueue("q", [asked("late")])
    await storage.claim("q", lease, 1)
    await storage._starts.run(["q"])
    await caller.commit()
    assert [] == await rows(connection, HIDDEN)
    await storage._starts.run(["q"])

    assert [] == await rows(connection, HIDDEN)
    assert ["late"] == [job.id for job in (await storage.claim("q", lease, 9)).jobs]


async def test_proposals_of_another_process_are_left_to_it(
    storage: PostgresStorage, connect: Connect
) -> None:
    """This process has not waited for the writers of a proposal that was made after its own look."""
    lease = await leased(storage)
    await storage.enqueue("q", [asked("a")])
    await storage.claim("q", lease, 1)
    connection = await connect()
    ((mine,),) = await rows(connection, "SELECT propose_starts('{q}', NULL)")
    assert 1 == len(mine)
    assert [([],)] == await rows(connection, "SELECT raise_starts('{q}', %s, NULL, true)", mine)
    await storage.enqueue("q", [asked("b")])
    await storage.claim("q", lease, 1)
    ((others,),) = await rows(connection, "SELECT propose_starts('{q}', NULL)")
    before = await rows(connection, STARTS)
    await rows(connection, "SELECT raise_starts('{q}', %s, '{}', true)", mine)

    assert before == await rows(connection, STARTS)
    assert [([],)] == await rows(connection, "SELECT raise_starts('{q}', %s, NULL, true)", others)
    assert before < await rows(connection, STARTS)


@pytest.mark.parametrize("pauses", [line_starts.PAUSES, (0.001,)], ids=["patient", "at once"])
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
async def test_open_transactions_and_raises_hide_no_job(
    storage: PostgresStorage,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    isolation: str,
    pauses: Sequence[float],
) -> None:
    """Callers enqueue in transactions that stay open, some below the start; two tasks raise without pause.

    They wait for the transactions, or note them at once.
    """
    monkeypatch.setattr(line_starts, "PAUSES", pauses)
    chance = random.Random(307)
    lease = await leased(storage)
    await storage.enqueue("q", [asked("first")])
    enqueued, ran = 1, 0
    ended = asyncio.Event()

    async def enqueue(name: str) -> None:
        nonlocal enqueued
        connection = await connect()
        for turn in range(40):
            await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            await connection.execute("SELECT count(*) FROM queues")
            await asyncio.sleep(chance.choice([0, 0, 0.02]))
            now = (await storage.renew(["q"], lease, 60_000))["q"].now
            jobs = [asked(f"{name}{turn}-{number}") for number in range(chance.choice([1, 5]))]
            jobs.append(asked(f"{name}{turn}-past", run_at=now - chance.randrange(2000)))
            await storage.in_transaction(connection).enqueue("q", jobs)
            await asyncio.sleep(chance.choice([0, 0.01, 0.05]))
            await connection.commit()
            enqueued += len(jobs)

    async def claim() -> None:
        nonlocal ran
        while not ended.is_set() or ran < enqueued:
            jobs = (await storage.claim("q", lease, chance.choice([1, 20]))).jobs
            await storage.settle("q", [done(job) for job in jobs])
            ran += len(jobs)
            if not jobs and ended.is_set():
                break
            await asyncio.sleep(0)

    async def raise_starts() -> None:
        while not ended.is_set():
            await storage._starts.run(["q"])

    others = [asyncio.create_task(claim()) for _ in range(2)]
    others += [asyncio.create_task(raise_starts()) for _ in range(2)]
    await asyncio.gather(*(enqueue(name) for name in "abc"))
    ended.set()
    await asyncio.gather(*others)

    assert [] == await rows(await connect(), HIDDEN)
    assert enqueued == ran


async def test_the_starts_rise_although_a_transaction_that_has_enqueued_stays_open(
    storage: PostgresStorage, connect: Connect
) -> None:
    """A claim begins at the jobs of the transaction once it has committed, and above them before."""
    lease = await leased(storage)
    connection, caller, other = await connect(), await connect(), await connect()
    await storage.enqueue("q", [asked("first")])
    await storage.in_transaction(caller).enqueue("q", [asked("late")])
    await storage.in_transaction(other).enqueue("q", [asked("later"), asked("past", run_at=5)])
    starts = []
    for _ in range(3):
        await pass_jobs(storage, lease, 1000)
        await storage._starts.run(["q"])
        starts += await rows(connection, STARTS)

    assert starts == sorted(set(starts))
    await caller.commit()
    assert [] == await rows(connection, HIDDEN)
    assert ["late"] == [job.id for job in (await storage.claim("q", lease, 9)).jobs]
    await storage._starts.run(["q"])
    # The line may be closed by now.
    assert starts[-1] <= ([*await rows(connection, STARTS), (2**63 - 1,)])[0]
    await other.commit()
    assert [] == await rows(connection, HIDDEN)
    assert ["past", "later"] == [job.id for job in (await storage.claim("q", lease, 9)).jobs]


async def test_a_transaction_that_is_rolled_back_lowers_no_start(
    storage: PostgresStorage, connect: Connect
) -> None:
    connection, caller = await connect(), await connect()
    await storage.enqueue("q", [asked("first")])
    await storage.in_transaction(caller).enqueue("q", [asked("never")])
    await pass_jobs(storage, await leased(storage), 1000)
    await storage._starts.run(["q"])
    risen = await rows(connection, STARTS)
    await caller.rollback()

    assert risen == await rows(connection, STARTS)


async def test_a_note_of_another_incarnation_hides_no_job_and_breaks_no_claim(
    storage: PostgresStorage, connect: Connect
) -> None:
    """In a restored dump, the id of the noted transaction is that of another one, or of none yet."""
    lease = await leased(storage)
    connection, caller = await connect(), await connect()
    await storage.enqueue("q", [asked("first")])
    await storage.in_transaction(caller).enqueue("q", [asked("late")])
    await pass_jobs(storage, lease, 1000)
    await storage._starts.run(["q"])
    await caller.commit()
    await connection.execute(
        "UPDATE marks SET writer = '999999999999', incarnation = incarnation + 1 WHERE kind = 'o'"
    )
    await connection.commit()

    assert [] == await rows(connection, HIDDEN)
    assert ["late"] == [job.id for job in (await storage.claim("q", lease, 1)).jobs]
