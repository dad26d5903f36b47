"""The fast paths of the Postgres functions: they store and answer the same as the general path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.errors import StorageError
from dibs.model.events import attempt_event
from dibs.model.job import Error, Job, JobData, NewJob, Outcome, OutcomeRetention, Slot
from dibs.model.overrides import Overrides
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    Reject,
    RetryLater,
    SettingsPatch,
    Settlement,
    Update,
)
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.codec import parameters
from dibs.storage.postgres.codec.positions import RowPositions
from tests.storage.postgres.jobs import asked, done

TIMES = {"run_at": 0, "enqueued_at": 0, "first": 0, "revision": 0}

BROKEN_ADMIT = """
CREATE OR REPLACE FUNCTION admit(qu queues, now_ms bigint, r request, room bigint) RETURNS admission
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'admit is broken'; END $$
"""


def without_times(slot: Slot) -> Slot:
    """Return a slot without its times and numbers, which differ from call to call."""
    current = None if slot.current is None else replace(slot.current, seq=0, **TIMES)
    outcome = slot.outcome
    if outcome is not None:
        expires_in = None if outcome.expires_at is None else outcome.expires_at - outcome.ended_at
        outcome = replace(outcome, fence=0, ended_at=0, claimed_at=0, expires_at=expires_in, **TIMES)
    return Slot(current, slot.successor, outcome, slot.dropped)


@pytest.mark.parametrize("level", ["runs", "all"])
@pytest.mark.parametrize("how", ["plain", "keyed", "reject"])
async def test_new_jobs_are_stored_the_same_by_enqueue_new_and_admit(
    storage: PostgresStorage, how: str, level: str
) -> None:
    """A wanted outcome selects the general path, admit(); without one the batch goes to enqueue_new()."""
    requests = [asked(id, delay=60_000) for id in ("c", "a", "b")]
    if how != "plain":
        requests = [replace(request, request_key=f"key {request.job.id}") for request in requests]
    if how == "reject":
        requests = [replace(request, on_conflict=Reject()) for request in requests]
    found = []
    for queue, wanted in (("fast", False), ("general", True)):
        await storage.configure(queue, SettingsPatch(log_level=level))  # type: ignore[arg-type]
        answers = []
        for _ in range(2):
            answers += await storage.enqueue(queue, [replace(one, want_outcome=wanted) for one in requests])
        slots = await storage.get(queue, ["a", "b", "c"])
        kinds = [(event.kind, event.id) for _, event in (await storage.events(queue)).events]
        statuses = [(one.status, one.found, one.repeated, one.id) for one in answers]
        found.append((statuses, [without_times(slot) for slot in slots], kinds))

    assert found[1] == found[0]
    assert [how != "plain"] * 3 == [repeated for _, _, repeated, _ in found[0][0][3:]]


async def test_a_batch_of_new_jobs_takes_the_set_based_path(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    """Batches with request keys and with Reject do not call admit(), which raises an error here."""
    connection = await connect()
    await connection.execute(BROKEN_ADMIT)
    await connection.commit()
    keyed = [replace(asked(id), request_key=id) for id in ("a", "b")]
    rejected = [replace(asked(id), on_conflict=Reject()) for id in ("c", "d")]

    results = [*await storage.enqueue("q", keyed), *await storage.enqueue("q", rejected)]

    assert ["queued"] * 4 == [result.status for result in results]
    with pytest.raises(StorageError, match="admit is broken"):
        await storage.enqueue("q", [asked("e"), replace(asked("a"), request_key="another")])


async def test_a_key_of_a_set_based_batch_is_known_after_its_job_has_ended(storage: PostgresStorage) -> None:
    keyed = [replace(asked(id), request_key=f"key {id}") for id in ("a", "b")]
    first = await storage.enqueue("q", keyed)
    await storage.configure("q", SettingsPatch(retention=OutcomeRetention(completed=0)))
    await storage.settle("q", [done(job) for job in await claimed(storage, "q")])

    second = await storage.enqueue("q", [*keyed, replace(asked("c"), request_key="key c")])

    assert [(True, "a"), (True, "b"), (False, "")] == [(one.repeated, one.id) for one in second]
    assert [one.revision for one in first] == [one.revision for one in second[:2]]
    assert [False, False, True] == [
        slot.current is not None for slot in await storage.get("q", ["a", "b", "c"])
    ]


async def test_reject_finds_the_outcome_of_one_id_in_a_batch(storage: PostgresStorage) -> None:
    await storage.enqueue("q", [asked("b")])
    await storage.settle("q", [done(job) for job in await claimed(storage, "q")])

    results = await storage.enqueue("q", [replace(asked(id), on_conflict=Reject()) for id in ("a", "b", "c")])

    assert ["queued", "completed", "queued"] == [result.status for result in results]


async def test_equal_batches_at_the_same_time_enqueue_each_job_once(storage: PostgresStorage) -> None:
    batches = [
        [replace(asked(f"{number} {one}"), request_key=f"{number} {one}") for one in range(50)]
        for number in range(10)
    ]

    answers = await asyncio.gather(
        *(storage.enqueue("q", batch[::step]) for batch in batches for step in (1, -1))
    )

    repeated = [[one.repeated for one in answer] for answer in answers]
    for ahead, behind in zip(repeated[::2], repeated[1::2], strict=True):
        assert [True] * 50 == [one or other for one, other in zip(ahead, behind[::-1], strict=True)]
    assert 500 == sum(flags.count(False) for flags in repeated)


@pytest.mark.parametrize("level", ["runs", "all"])
async def test_one_plain_request_is_stored_and_logged_the_same_by_both_queries(
    storage: PostgresStorage, level: str
) -> None:
    """A request key selects the query enqueue. Its id is new, waiting, active, then blocked."""
    found = []
    for queue, keyed in (("fast", False), ("general", True)):
        await storage.configure(queue, SettingsPatch(log_level=level))  # type: ignore[arg-type]
        answers = []
        for number in range(4):
            if number == 2:
                await claimed(storage, queue)
            request = asked("a", f"{number}".encode())
            answers += await storage.enqueue(
                queue, [replace(request, request_key=f"{number}") if keyed else request]
            )
        (slot,) = await storage.get(queue, ["a"])
        assert slot.current is not None
        assert slot.current.run is not None
        assert slot.successor is not None
        run = replace(slot.current.run, fence=0, lease="", claimed_at=0)
        found.append(
            (
                [(answer.status, answer.found, answer.first == answer.revision) for answer in answers],
                replace(slot.current, seq=0, run=run, **TIMES),
                replace(slot.successor, seq=0, lo=0, hi=0, **TIMES),
                [event.kind for _, event in (await storage.events(queue)).events],
            )
        )

    assert found[1] == found[0]
    assert ["queued", "updated", "blocked", "blocked"] == [status for status, *_ in found[0][0]]


@pytest.mark.parametrize("level", ["off", "runs", "all"])
@pytest.mark.parametrize("most", [0, 99, 100])
async def test_completions_are_stored_and_logged_the_same_by_complete_all_and_settle_one(
    storage: PostgresStorage, level: str, most: int
) -> None:
    """A retention in the settlement selects the general path, settle_one()."""
    slots, events = [], []
    both = [
        EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"1", attributes={"tenant": b"7"}))),
        EnqueueRequest(job=NewJob(id="b")),
    ]
    for queue, retention in (("fast", None), ("general", OutcomeRetention())):
        await storage.configure(queue, SettingsPatch(log_level=level, log_results=most))  # type: ignore[arg-type]
        await storage.enqueue(queue, both)
        jobs = await claimed(storage, queue)
        action = Complete(result=b"1" * 100, retention=retention)
        ends = [Settlement(id=job.id, fence=job.run.fence if job.run else 0, action=action) for job in jobs]
        assert ["done", "done"] == [result.status for result in await storage.settle(queue, ends)]
        slots.append([without_times(slot) for slot in await storage.get(queue, ["a", "b"])])
        logged = [event for _, event in (await storage.events(queue)).events]
        events.append([(event.kind, event.id, event.attempt, event.holder, event.result) for event in logged])

    assert slots[1] == slots[0]
    assert events[1] == events[0]
    results = {result for kind, *_, result in events[0] if kind == "completed"}
    assert (set() if level == "off" else {b"1" * 100 if most == 100 else None}) == results
    assert {"tenant": b"7"} == outcome_of(slots[0][0]).attributes


async def test_completions_of_one_step_are_logged_with_all_their_fields(storage: PostgresStorage) -> None:
    """complete_all() shortens the events of usual runs, and leaves those with other values as they are."""
    await storage.configure("q", SettingsPatch(log_results=3))
    await storage.enqueue("q", [asked("retried")])
    (first,) = await claimed(storage, "q", "me")
    back = RetryLater(delay=0, error=Error(type="E", message="no"))
    await storage.settle("q", [Settlement(id="retried", fence=fence_of(first), action=back)])
    await storage.enqueue("q", [asked("elsewhere")])
    jobs = await claimed(storage, "q", "host\n1")
    await storage.enqueue("q", [asked(id) for id in ("completed", 'quote"', "merged", "result", "long")])
    await storage.enqueue("q", [asked("merged")])
    jobs += await claimed(storage, "q", "me")
    results = {"result": b"abc", "long": b"abcd"}
    jobs.sort(key=lambda job: job.id)
    await storage.settle("q", [done(job, results.get(job.id)) for job in jobs])
    events = [event for _, event in (await storage.events("q")).events if event.kind == "completed"]

    assert len({event.at for event in events}) == 1
    kept = {"result": b"abc"}
    assert events == [attempt_event("completed", job, events[0].at, result=kept.get(job.id)) for job in jobs]


@pytest.fixture
def positions_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the positions of rows also with a few settlements."""
    monkeypatch.setattr(parameters, "FEWEST_POSITIONS", 1)


@pytest.mark.parametrize("level", ["off", "runs"])
async def test_completions_without_outcomes_are_logged_the_same_by_complete_runs_and_complete_all(
    storage: PostgresStorage, level: str, positions_sent: None
) -> None:
    """complete_runs() needs the positions of the rows, which a claim returns."""
    patch = SettingsPatch(log_level=level, retention=OutcomeRetention(completed=0))  # type: ignore[arg-type]
    ids = ["a", 'quote"', "ü", "z"]
    for queue in ("fast", "general"):
        await storage.configure(queue, patch)
        await storage.enqueue(queue, [asked(id) for id in reversed(ids)])
        jobs = await claimed(storage, queue, "host\n1")
        if queue == "general":
            storage._positions.take([fence_of(job) for job in jobs])
        results = await storage.settle(queue, [done(job, b"1") for job in jobs])
        events = [event for _, event in (await storage.events(queue)).events]

        assert ["done"] * 4 == [result.status for result in results]
        assert [Slot()] * 4 == await storage.get(queue, ids)
        told = jobs if level == "runs" else []
        assert events == [attempt_event("completed", job, events[0].at) for job in told]
    entries = await storage._server.fetch(
        b"SELECT packed LIKE '%%\"ids\"%%' FROM "
        + storage._server.queries.schema.encode()
        + b".events ORDER BY n",
        {},
        writes=False,
    )
    assert ([(True,), (False,)] if level == "runs" else []) == entries


UPDATED = EnqueueRequest(job=NewJob(id="other", data=JobData(payload=b"2")))
OTHERS = {
    "a key": EnqueueRequest(job=NewJob(id="other", data=JobData(payload=b"1", key="k"))),
    "a retention": EnqueueRequest(
        job=NewJob(id="other", data=JobData(payload=b"1", retention=OutcomeRetention(completed=60_000)))
    ),
    "a delay": EnqueueRequest(job=NewJob(id="other", run_at=0)),
    "a successor": UPDATED,
    "a report": UPDATED,
    "an older outcome": UPDATED,
    "an unknown fence": UPDATED,
}


@pytest.mark.parametrize("what", OTHERS)
async def test_complete_runs_leaves_other_runs_to_the_general_path(
    storage: PostgresStorage, what: str, positions_sent: None
) -> None:
    """The settled slots and the answers are those without positions. A report moves the row."""
    found = []
    for queue in ("fast", "general"):
        patch = SettingsPatch(retention=OutcomeRetention(completed=0, failed=60_000), per_key=9)
        await storage.configure(queue, patch)
        if what == "an older outcome":
            await storage.enqueue(queue, [asked("other")])
            (job,) = await claimed(storage, queue)
            failed = Fail(error=Error(type="E", message="no"))
            await storage.settle(queue, [Settlement(id="other", fence=fence_of(job), action=failed)])
        await storage.enqueue(queue, [asked("first"), OTHERS[what]])
        jobs = {job.id: job for job in await claimed(storage, queue)}
        other = jobs["other"]
        if what == "a successor":
            await storage.enqueue(queue, [asked("other", b"3")])
        if what == "a report":
            assert "reported" == await storage.report(queue, "other", fence_of(other), b"1", b"2")
        ends = [done(jobs["first"]), done(other)]
        if what == "an unknown fence":
            storage._positions.add([7], storage._positions.take([fence_of(other)]) or [])
            ends[1] = replace(ends[1], fence=7)
        if queue == "general":
            storage._positions = RowPositions()
        statuses = [result.status for result in await storage.settle(queue, ends)]
        slots = [without_times(slot) for slot in await storage.get(queue, ["first", "other"])]
        kinds = [(event.kind, event.id) for _, event in (await storage.events(queue)).events]
        slots = [
            Slot(one.current and replace(one.current, run=None, seq=0), None, one.outcome) for one in slots
        ]
        found.append((statuses, slots, sorted(kinds)))

    assert found[1] == found[0]
    assert ["done", "lost" if what == "an unknown fence" else "done"] == found[0][0]
    assert Slot() == found[0][1][0]


async def test_a_completion_by_position_frees_the_key_of_its_job(
    storage: PostgresStorage, positions_sent: None
) -> None:
    await storage.configure("q", SettingsPatch(retention=OutcomeRetention(completed=0), per_key=1))
    keyed = JobData(payload=b"1", key="k")
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=keyed)) for id in ("a", "b")])
    claims = []
    for _ in range(2):
        jobs = await claimed(storage, "q")
        claims.append([job.id for job in jobs])
        await storage.settle("q", [done(job) for job in jobs])

    assert [["a"], ["b"]] == claims


async def test_a_claim_returns_the_job_that_get_returns(storage: PostgresStorage) -> None:
    """A claim sends the columns that most jobs do not need as one text, see rest_of()."""
    rich = JobData(
        payload=b"2",
        attributes={"tenant": b'{"a":[1]}'},
        priority=-3,
        overrides=Overrides(timeout=5),
        retention=OutcomeRetention(completed=7),
        key="k",
    )
    back = RetryLater(delay=0, error=Error(type="E", message="no"))
    await storage.enqueue("q", [asked("plain"), EnqueueRequest(job=NewJob(id="rich", data=rich))])
    jobs: list[Job] = []
    for _ in range(2):
        jobs = await claimed(storage, "q")
        slots = await storage.get("q", [job.id for job in jobs])
        assert [slot.current for slot in slots] == list(jobs)
        ends = [Settlement(id=job.id, fence=job.run.fence if job.run else 0, action=back) for job in jobs]
        await storage.settle("q", ends)

    assert {"plain", "rich"} == {job.id for job in jobs}
    assert {1} == {job.retries for job in jobs}


async def test_an_update_of_a_run_ends_with_it_on_the_fast_path(storage: PostgresStorage) -> None:
    """complete_all() leaves a run with a successor that makes no job to settle_one()."""
    await storage.enqueue("q", [asked("a"), asked("b")])
    jobs = await claimed(storage, "q")
    update = EnqueueRequest(job=NewJob(id="a"), on_conflict=Update(create=False))
    (blocked,) = await storage.enqueue("q", [update])
    await storage.settle("q", [done(job) for job in jobs])
    (slot,) = await storage.get("q", ["a"])
    ended = [event for _, event in (await storage.events("q")).events if event.id == "a"]

    assert None is slot.current
    assert (blocked.revision, 2) == (outcome_of(slot).revision, outcome_of(slot).enqueues)
    assert [(blocked.revision, 2)] == [(event.revision, event.enqueues) for event in ended]


def outcome_of(slot: Slot) -> Outcome:
    assert slot.outcome is not None
    return slot.outcome


def fence_of(job: Job) -> int:
    assert job.run is not None
    return job.run.fence


async def claimed(storage: PostgresStorage, queue: str, holder: str = "me") -> list[Job]:
    lease = (await storage.grant([queue], 60_000, holder)).lease
    return list((await storage.claim(queue, lease, 10)).jobs)
