"""serve(): it stores and answers for several queues what settle_and_claim does for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.job import Error, Job, JobData, NewJob, Outcome, OutcomeRetention, Slot
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    QueueStep,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.model.results import ClaimResult, SettleAndClaimResult
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, done

Connect = Callable[[], Any]

NOT_KEPT = OutcomeRetention(completed=0, failed=60_000)
NOW = 1_000_000
MANY = 100

#: The function of one queue that a plain step must not call, as a function that raises an error.
BROKEN = """
CREATE OR REPLACE FUNCTION complete_all(
    qu queues, now_ms bigint, ids text[], fences bigint[], results bytea[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'complete_all is broken'; END $$
"""


class Kind(Struct):
    """A queue with settings, jobs and, after the first claim, changes that serve() must not overlook."""

    settings: SettingsPatch = SettingsPatch()
    jobs: Sequence[EnqueueRequest] = tuple(asked(f"j{number}") for number in range(6))
    limits: tuple[int, int] = (3, 2)
    action: SettleAction = Complete()
    #: The id of a job that is enqueued again during its run.
    updated: str = ""
    #: The id of a job whose report moves its row.
    reported: str = ""
    #: An id that failed earlier, so that it has an outcome.
    failed_before: str = ""
    #: True if the first job was claimed before, and returned by a retry.
    retried_before: bool = False
    #: True to settle with a wrong fence.
    wrong_fence: bool = False


def keyed(id: str, key: str | None, **more: Any) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1", key=key, **more)))


def urgent(id: str, priority: int, run_at: int | None = None) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1", priority=priority), run_at=run_at))


KINDS: dict[str, Kind] = {
    "plain": Kind(),
    "empty": Kind(jobs=()),
    "settles only": Kind(limits=(3, 0)),
    "paused": Kind(SettingsPatch(paused=True)),
    "max_active": Kind(SettingsPatch(max_active=2)),
    "per_key": Kind(SettingsPatch(per_key=1), [keyed("a", "k"), keyed("b", "k"), keyed("c", "l")]),
    "rate": Kind(SettingsPatch(rate=StartRate(starts=1, per=60_000, burst=2))),
    "key_rate": Kind(
        SettingsPatch(key_rate=StartRate(starts=1, per=60_000, burst=1)), [keyed("a", "k"), keyed("b", "k")]
    ),
    "log all": Kind(SettingsPatch(log_level="all")),
    "log off": Kind(SettingsPatch(log_level="off")),
    "log results": Kind(SettingsPatch(log_results=10), action=Complete(result=b"1")),
    "outcomes kept": Kind(
        SettingsPatch(retention=OutcomeRetention(completed=5)), action=Complete(result=b"1")
    ),
    "two priorities": Kind(jobs=[urgent("a", 0), urgent("b", 5), urgent("c", 5), urgent("d", -1)]),
    "scheduled first": Kind(jobs=[urgent("a", 0), urgent("b", 5, NOW + 50), urgent("c", 5), asked("d")]),
    "scheduled": Kind(jobs=[urgent("a", 0, NOW + 70), urgent("b", 0, NOW + 60), urgent("c", 0)]),
    "due in another order": Kind(
        jobs=[urgent("a", 0, NOW - 1), urgent("b", 0, NOW - 5), asked("c")], limits=(1, 1)
    ),
    "own retention": Kind(jobs=[keyed("a", None, retention=OutcomeRetention(completed=60_000)), asked("b")]),
    "key": Kind(jobs=[keyed("a", "k"), asked("b")]),
    "rich": Kind(jobs=[keyed("a", None, attributes={"x": b"[1]"}), asked("b")]),
    "failures": Kind(action=Fail(error=Error(type="E", message="no"))),
    "updated": Kind(updated="j1"),
    "reported": Kind(reported="j1"),
    "failed before": Kind(failed_before="j1"),
    "merged": Kind(jobs=[asked("a"), asked("a"), asked("b")]),
    "due before the enqueue": Kind(jobs=[urgent("a", 0, NOW - 5), asked("b")]),
    "retried before": Kind(retried_before=True, limits=(6, 1)),
    "wrong fence": Kind(wrong_fence=True),
    "many": Kind(jobs=[asked(f"{number:04}") for number in range(3 * MANY)], limits=(MANY, MANY + 1)),
}  # fmt: skip


async def prepare(storage: PostgresStorage, queue: str, kind: Kind) -> None:
    await storage.configure(queue, SettingsPatch(retention=NOT_KEPT), now=NOW - 1000)
    if kind.failed_before:
        await storage.enqueue(queue, [asked(kind.failed_before)], now=NOW - 1000)
        lease = (await storage.grant([queue], 60_000, "test", now=NOW - 1000)).lease
        [job] = (await storage.claim(queue, lease, 1, now=NOW - 1000)).jobs
        await storage.settle(queue, [ended(job, Fail(error=Error(type="E", message="no")))], now=NOW - 1000)
    await storage.configure(queue, kind.settings, now=NOW - 1000)
    if kind.jobs:
        await storage.enqueue(queue, kind.jobs, now=NOW)
    if kind.retried_before:
        lease = (await storage.grant([queue], 60_000, "test", now=NOW)).lease
        [job] = (await storage.claim(queue, lease, 1, now=NOW)).jobs
        await storage.settle(queue, [ended(job, RetryLater())], now=NOW)


def ended(job: Job, action: SettleAction, *, wrong_fence: bool = False) -> Settlement:
    assert job.run is not None
    return Settlement(id=job.id, fence=job.run.fence + wrong_fence, action=action)


async def settlements(
    storage: PostgresStorage, queue: str, kind: Kind, claim: ClaimResult
) -> list[Settlement]:
    """Change the runs as the kind says, and return the settlements of all."""
    for job in claim.jobs:
        assert job.run is not None
        if job.id == kind.updated:
            await storage.enqueue(queue, [asked(job.id, b"2")], now=NOW)
        if job.id == kind.reported:
            await storage.report(queue, job.id, job.run.fence, b"1", b"2", now=NOW)
    return [ended(job, kind.action, wrong_fence=kind.wrong_fence) for job in claim.jobs]


async def claim_twice(storage: PostgresStorage, *, together: bool) -> list[tuple[Any, ...]]:
    """Claim, and then settle and claim, in each queue. Return what can be seen of the queues."""
    for name, kind in KINDS.items():
        await prepare(storage, name, kind)
    call = serve if together else call_each
    lease = (await storage.grant(list(KINDS), 60_000, "test", now=NOW)).lease
    first = await call(
        storage, [QueueStep(name, limit=kind.limits[0]) for name, kind in KINDS.items()], lease, NOW
    )
    steps = [
        QueueStep(name, await settlements(storage, name, kind, answer.claim), kind.limits[1])
        for (name, kind), answer in zip(KINDS.items(), first, strict=True)
    ]
    second = await call(storage, steps, lease, NOW + 1)
    answers = zip(KINDS.items(), first, second, strict=True)
    return [await seen(storage, name, kind, a.claim, b) for (name, kind), a, b in answers]


async def serve(
    storage: PostgresStorage, steps: Sequence[QueueStep], lease: str, now: int
) -> Sequence[SettleAndClaimResult]:
    return await storage.serve(steps, lease, now=now)


async def call_each(
    storage: PostgresStorage, steps: Sequence[QueueStep], lease: str, now: int
) -> Sequence[SettleAndClaimResult]:
    """Answer the steps with calls for one queue."""
    answers = []
    for step in steps:
        settled = tuple(await storage.settle(step.queue, step.settlements, now=now))
        claim = ClaimResult(now=now)
        if step.limit:
            claim = await storage.claim(step.queue, lease, step.limit, now=now)
        answers.append(SettleAndClaimResult(settled, claim))
    return answers


async def seen(
    storage: PostgresStorage, queue: str, kind: Kind, first: ClaimResult, second: SettleAndClaimResult
) -> tuple[Any, ...]:
    """Return what can be read about a queue, and its answers, without numbers, which differ."""
    slots = await storage.get(queue, [request.job.id for request in kind.jobs], now=NOW + 1)
    events = [event for _, event in (await storage.events(queue, limit=1000, now=NOW + 1)).events]
    return (
        queue,
        claim_seen(first),
        claim_seen(second.claim),
        [(one.status, bool(one.revision)) for one in second.settled],
        [Slot(job_seen(s.current), None, outcome_seen(s.outcome)) for s in slots],
        (await storage.counts([queue], now=NOW + 1))[queue],
        sorted(map(event_seen, events)),
    )


def claim_seen(claim: ClaimResult) -> tuple[Any, ...]:
    return [job_seen(job) for job in claim.jobs], claim.now, claim.next_due, claim.lost


def job_seen(job: Job | None) -> Job | None:
    if job is None:
        return None
    run = job.run and replace(job.run, fence=0, lease="")
    return replace(job, seq=0, first=0, revision=0, run=run)


def outcome_seen(outcome: Outcome | None) -> Outcome | None:
    return outcome and replace(outcome, fence=0, first=0, revision=0)


def event_seen(event: LogEvent) -> tuple[Any, ...]:
    return (
        *(event.id, event.kind, event.at, event.attempt, event.claimed_at or 0, event.holder, event.result),
        *(event.enqueues, event.enqueued_at, event.run_at, event.first == event.revision),
    )


async def test_it_stores_and_answers_what_calls_for_one_queue_do(
    opening: Callable[..., PostgresStorage], schema: str
) -> None:
    found = []
    for together in (True, False):
        async with opening(clock="manual", schema=f"{schema}_{together}") as storage:
            found.append(await claim_twice(storage, together=together))

    for served, expected in zip(*found, strict=True):
        assert expected == served, expected[0]


async def fill(storage: PostgresStorage, queues: Sequence[str], jobs: int) -> str:
    for queue in queues:
        await storage.configure(queue, SettingsPatch(retention=NOT_KEPT))
        for start in range(0, jobs, 1000):
            await storage.enqueue(queue, [asked(f"{n:04}") for n in range(start, min(start + 1000, jobs))])
    return (await storage.grant(queues, 60_000, "test")).lease


async def test_plain_steps_call_no_function_of_one_queue(storage: PostgresStorage, connect: Connect) -> None:
    """The positions are also sent for few settlements of a queue, if the call has many."""
    queues = [f"q{number}" for number in range(10)]
    lease = await fill(storage, queues, 3)
    connection = await connect()
    await connection.execute(BROKEN)
    await connection.commit()
    claimed = await storage.serve([QueueStep(queue, limit=2) for queue in queues], lease)
    steps = [
        QueueStep(queue, [done(job) for job in one.claim.jobs], 2)
        for queue, one in zip(queues, claimed, strict=True)
    ]
    settled = await storage.serve(steps, lease)

    assert [["0000", "0001"]] * 10 == [[job.id for job in one.claim.jobs] for one in claimed]
    assert [["0002"]] * 10 == [[job.id for job in one.claim.jobs] for one in settled]
    assert {"done"} == {one.status for step in settled for one in step.settled}


async def test_large_payloads_come_in_several_rows(storage: PostgresStorage) -> None:
    payload = b"1" * 1_000_000
    for number in range(110):
        await storage.enqueue("ab"[number % 2], [asked(f"{number:03}", payload)])
    lease = (await storage.grant(["a", "b"], 60_000, "test")).lease
    found = await storage.serve([QueueStep("a", limit=200), QueueStep("b", limit=200)], lease)

    assert [f"{number:03}" for number in range(0, 110, 2)] == [job.id for job in found[0].claim.jobs]
    assert [f"{number:03}" for number in range(1, 110, 2)] == [job.id for job in found[1].claim.jobs]


async def test_a_claim_waits_for_the_end_of_its_lease(storage: PostgresStorage, connect: Connect) -> None:
    """A reap or a drop locks the row of the lease. Without the wait, jobs would start under no lease."""
    lease = await fill(storage, ["a", "b"], 2)
    connection = await connect()
    of_b = "WHERE q = (SELECT q FROM queues WHERE name = 'b')"
    await connection.execute(f"SELECT FROM leases {of_b} FOR UPDATE")
    await connection.execute(f"UPDATE leases SET dropped = true {of_b}")
    storage = storage.limit_lock_waits(20)
    task = asyncio.ensure_future(storage.serve([QueueStep("a", limit=1), QueueStep("b", limit=1)], lease))
    await asyncio.sleep(0.1)
    assert not task.done()
    await connection.commit()
    found = await task

    assert [(1, False), (0, True)] == [(len(one.claim.jobs), one.claim.lost) for one in found]


async def test_a_settlement_of_an_unknown_queue_is_lost(storage: PostgresStorage) -> None:
    lease = await fill(storage, ["a"], 1)
    [claimed] = await storage.serve([QueueStep("a", limit=1)], lease)
    steps = [
        QueueStep("a", [done(job) for job in claimed.claim.jobs]),
        QueueStep("unknown", [Settlement(id="x", fence=1, action=Complete())] * 2, 1),
    ]
    known, unknown = await storage.serve(steps, lease)

    assert ["done"] == [one.status for one in known.settled]
    assert ["lost", "lost"] == [one.status for one in unknown.settled]
    assert unknown.claim.lost


@pytest.mark.parametrize(("after", "claimed"), [(59_999, 1), (60_000, 0)])
async def test_a_lease_ends_at_its_expiry(
    opening: Callable[..., PostgresStorage], schema: str, after: int, claimed: int
) -> None:
    async with opening(clock="manual", schema=schema) as storage:
        for queue in ("a", "b"):
            await storage.enqueue(queue, [asked("1")], now=NOW)
        lease = (await storage.grant(["a", "b"], 60_000, "test", now=NOW)).lease
        found = await storage.serve(
            [QueueStep("a", limit=1), QueueStep("b", limit=1)], lease, now=NOW + after
        )

    assert [(claimed, not claimed)] * 2 == [(len(one.claim.jobs), one.claim.lost) for one in found]
