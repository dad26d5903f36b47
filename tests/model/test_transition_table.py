"""The table of transitions, executed row by row on a memory storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import get_args

import pytest

from dibs.model.job import Error, Job, NewJob, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import FoundState
from dibs.model.transition_table import BLOCKED_UPDATES, JOINED, PARKED, TABLE, Row, markdown
from dibs.storage.memory import MemoryStorage

Q = "q"
UPDATE_ONLY = Update(create=False)
TTL = 1000
HOWS: dict[str, SettleAction] = {
    "Complete": Complete(result=b"1"),
    "Fail": Fail(error=Error(type="Oops")),
    "Cancelled": Cancelled(),
    "RetryLater": RetryLater(),
    "Release": Release(),
    "Release(delay)": Release(delay=5),
    "Release(parked)": Release(delay=5, parked=True),
    "HandOff": HandOff(),
}


class Walk:
    """One id of a memory storage, and the verbs of the table for it."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.storage = storage
        self.now = 10
        self.fence = 0

    async def put(self, how: OnConflict) -> str:
        request = EnqueueRequest(job=NewJob(id="a"), on_conflict=how)
        return (await self.storage.enqueue(Q, [request], now=self.now))[0].status

    async def claim(self) -> Job:
        lease = await self.storage.grant([Q], TTL, "h", now=self.now)
        job = (await self.storage.claim(Q, lease.lease, 1, now=self.now)).jobs[0]
        assert job.run is not None
        self.fence = job.run.fence
        return job

    async def settle(self, how: SettleAction) -> str:
        one = Settlement(id="a", fence=self.fence, action=how)
        return (await self.storage.settle(Q, [one], now=self.now))[0].status

    async def reap(self) -> str:
        self.now += TTL
        return (await self.storage.reap(Q, 9, now=self.now))[0].kind

    async def forget(self) -> str:
        return "forgotten" if (await self.storage.forget(Q, ["a"], now=self.now))[0] else "not_found"

    async def cancel(self, *, running: bool) -> str:
        return (await self.storage.cancel(Q, ["a"], running=running, now=self.now))[0]

    async def take(self) -> str:
        await self.claim()
        return "the job"

    async def retry_failed(self) -> str:
        return (await self.storage.retry_failed(Q, ["a"], now=self.now))[0]

    async def slot(self) -> Slot:
        return (await self.storage.get(Q, ["a"], now=self.now))[0]


VERBS: dict[str, Callable[[Walk], Awaitable[str]]] = {
    "enqueue Update": lambda walk: walk.put(Update()),
    "enqueue Update(create=False)": lambda walk: walk.put(UPDATE_ONLY),
    "enqueue Update(wake)": lambda walk: walk.put(Update(create=False, run_at="wake")),
    "enqueue Update(supersede)": lambda walk: walk.put(Update(supersede=True)),
    "enqueue Reject": lambda walk: walk.put(Reject()),
    "enqueue Reject(failed)": lambda walk: walk.put(Reject(failed=True)),
    "claim": Walk.take,
    "reap": Walk.reap,
    "cancel": lambda walk: walk.cancel(running=False),
    "cancel running": lambda walk: walk.cancel(running=True),
    "retry_failed": Walk.retry_failed,
    "forget": Walk.forget,
    **{f"settle {name}": lambda walk, how=how: walk.settle(how) for name, how in HOWS.items()},  # type: ignore[misc]
}


async def bring(walk: Walk, source: str) -> None:
    """Bring a new id to a state of the table."""
    state, _, outcome = source.partition(", ")
    if outcome:
        await walk.put(Update())
        await walk.claim()
        await walk.settle(HOWS["Complete" if outcome == "completed" else "Fail"])
    if state != "nothing":
        await walk.put(Update())
    if state.startswith("active") or state == PARKED:
        await walk.claim()
    if state == PARKED:
        await walk.settle(HOWS["Release(parked)"])
    if state == BLOCKED_UPDATES:
        await walk.put(UPDATE_ONLY)
    elif state.startswith("active+blocked"):
        await walk.put(Update())
    if state.endswith(" (handed off)"):
        await walk.settle(HOWS["HandOff"])


def named(slot: Slot) -> str:
    """Return the state of an id, as the table names it."""
    state = "nothing"
    if slot.current is not None:
        state = "waiting" if slot.current.run is None else "active"
        if slot.current.is_parked:
            state = PARKED
        if slot.successor is not None:
            state = "active+blocked" if slot.successor.creates else BLOCKED_UPDATES
    return state if slot.outcome is None else f"{state}, {slot.outcome.kind}"


@pytest.fixture
async def walk() -> AsyncIterator[Walk]:
    async with MemoryStorage(clock="manual") as storage:
        yield Walk(storage)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.verb}: {row.source}")
async def test_the_row_holds(walk: Walk, row: Row) -> None:
    """The verb takes an id from `source` to `target` and returns `answer`."""
    await bring(walk, row.source)
    assert row.source.replace(" (handed off)", "") == named(await walk.slot())

    answer = await VERBS[row.verb](walk)

    assert row.answer == answer
    # Of an update-only request, the table names the same state as of one that creates a job.
    after = named(await walk.slot())
    assert row.target == (
        after.removesuffix(" (creates nothing)") if row.verb.startswith("enqueue") else after
    )


UNCHANGED = [row for row in TABLE if row.effect.startswith("unchanged")]


@pytest.mark.parametrize("row", UNCHANGED, ids=lambda row: f"{row.verb}: {row.source}")
async def test_a_row_that_says_unchanged_changes_nothing(walk: Walk, row: Row) -> None:
    await bring(walk, row.source)
    before = await walk.slot()

    await VERBS[row.verb](walk)

    assert before == await walk.slot()


def test_no_state_met_by_no_verb_is_told_twice() -> None:
    """Each verb has one row for each state."""
    assert len(TABLE) == len({(row.verb, row.source) for row in TABLE})


@pytest.mark.parametrize(
    "verb",
    [
        "enqueue Update",
        "enqueue Update(create=False)",
        "enqueue Update(wake)",
        "enqueue Update(supersede)",
        "enqueue Reject",
        "cancel",
        "retry_failed",
        "forget",
    ],
)
def test_a_verb_by_id_says_what_it_does_to_every_live_state(verb: str) -> None:
    told = {row.source for row in TABLE if row.verb == verb}

    assert set(get_args(FoundState)) - {"nothing"} <= told


@pytest.mark.parametrize("name", HOWS)
def test_every_settlement_says_what_it_does_to_an_active_id(name: str) -> None:
    told = {row.source for row in TABLE if row.verb == f"settle {name}"}

    assert {"active", "active+blocked"} == told - {BLOCKED_UPDATES}
    assert (BLOCKED_UPDATES in told) == (name in ("Complete", "Fail", "Cancelled"))


@pytest.mark.parametrize("row", [row for row in TABLE if row.effect == JOINED], ids=lambda row: row.verb)
async def test_an_end_joins_the_range_of_what_creates_nothing(walk: Walk, row: Row) -> None:
    """The outcome and the event of the end have the joined range of the run and the successor."""
    await bring(walk, row.source)
    before = await walk.slot()
    await VERBS[row.verb](walk)
    outcome = (await walk.slot()).outcome
    page = await walk.storage.events(Q, now=walk.now)

    assert before.current is not None
    assert before.successor is not None
    assert outcome is not None
    joined = (before.current.first, before.successor.revision, 2)
    assert joined == (outcome.first, outcome.revision, outcome.enqueues)
    assert [joined] == [(event.first, event.revision, event.enqueues) for _, event in page.events]


def test_the_page_shows_every_row() -> None:
    lines = markdown().splitlines()

    assert 2 + len(TABLE) == len(lines)
    assert all(row.verb in line and row.target in line for row, line in zip(TABLE, lines[2:], strict=True))
