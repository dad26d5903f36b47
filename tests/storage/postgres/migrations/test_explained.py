"""Two overlapping calls on one id get the answers of the same calls made one after the other in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs.model.job import Error, Job, JobData, NewJob, Outcome, OutcomeRetention, Slot
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    JobPatch,
    Settlement,
)
from dibs.model.results import ExportRecord
from dibs.storage.memory import MemoryStorage
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.codec import parameters
from tests.storage.postgres.migrations.test_overlaps import COUNT_WAITING, until_waiting

REQUEST = EnqueueRequest(job=NewJob(id="a"))
FOLLOW_UP = FollowUp(queue="q", job=NewJob(id="a"))
FAILURE = Fail(error=Error(type="E", message="no"))
IMPORTED = Slot(
    current=Job(id="a", data=JobData(), run_at=1, enqueued_at=1, seq=7, first=7, revision=7),
    outcome=Outcome(kind="failed", fence=3, first=3, revision=3, ended_at=1, expires_at=None),
)
FAR = 4_000_000_000_000
FOR_EVER = OutcomeRetention(completed=None, failed=None, cancelled=None)


class Story:
    """The job `a` of one storage, and the two calls on it that a test compares."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.fence = 0
        self.revision = 0

    async def prepare(self, steps: str) -> None:
        """Bring `a` into a state, by steps in their order: active, blocked, failed."""
        await self.storage.enqueue("q", [EnqueueRequest(job=NewJob(id="other", run_at=FAR))])
        lease = (await self.storage.grant(["q"], 60_000, "ann")).lease
        for step in steps.split():
            if step == "failed":
                await self.first("fail", self.storage)
                continue
            [answer] = await self.storage.enqueue("q", [REQUEST])
            if step == "active":
                [job] = (await self.storage.claim("q", lease, 1)).jobs
                self.fence = job.run.fence
                self.revision = self.revision or answer.revision

    async def first(self, name: str, storage: Any) -> Any:
        """Make the call that holds its locks while the second one begins. `storage` may be a transaction."""
        match name:
            case "follow" | "fail":
                end = FAILURE if name == "fail" else Complete(then=(FOLLOW_UP,))
                [settled] = await storage.settle("q", [Settlement(id="a", fence=self.fence, action=end)])
                return settled.status
            case "enqueue":
                return (await storage.enqueue("q", [REQUEST]))[0].status
            case "import":
                return await storage.import_("q", [ExportRecord(id="a", slot=IMPORTED)])
            case _:
                return await getattr(storage, name)("q", ["a"])

    async def second(self, name: str) -> Any:
        """Make the call that overlaps. A finish names the first enqueue of `a`."""
        match name:
            case "amend":
                return await self.storage.amend("q", "a", JobPatch(attributes={"k": b"1"}))
            case "amend retention":
                return await self.storage.amend("q", "a", JobPatch(retention=FOR_EVER))
            case "finish":
                return await self.storage.finish("q", "a", Complete(), revision=self.revision)
            case _:
                return await getattr(self.storage, name)("q", ["a"])

    async def summary(self) -> Any:
        """Return the parts of `a` without times and numbers."""
        [slot] = await self.storage.get("q", ["a"])
        job = slot.current and (slot.current.run is None, slot.current.data)
        return (
            job,
            slot.successor is None,
            slot.outcome and (slot.outcome.kind, slot.outcome.expires_at is None),
        )


class InTransaction:
    """The first calls in the open transaction of a connection."""

    def __init__(self, storage: PostgresStorage, connection: Any) -> None:
        joined = storage.in_transaction(connection)
        self.enqueue, self.settle = joined.enqueue, joined.settle
        self.connection = connection

    async def _call(self, query: str, *values: Any) -> Any:
        return (await (await self.connection.execute(query, values)).fetchone())[0]

    async def import_(self, queue: str, records: Any) -> Any:
        texts = [parameters.encode_record(one.slot) for one in records]
        floor = parameters.highest_number([one.slot for one in records])
        return await self._call(
            "SELECT import_ids(%s, %s, %s, %s, NULL)", queue, [one.id for one in records], texts, floor
        )

    async def retry_failed(self, queue: str, ids: Any) -> Any:
        return await self._call("SELECT retry_failed(%s, %s, 0, NULL)", queue, ids)

    async def forget(self, queue: str, ids: Any) -> Any:
        return await self._call("SELECT forget(%s, %s, NULL)", queue, ids)


async def orders(state: str, first: str, second: str) -> list[Any]:
    """Return the answers and the last state of both orders, in memory."""
    found = []
    for swapped in (False, True):
        async with MemoryStorage() as storage:
            story = Story(storage)
            await story.prepare(state)
            early = await story.second(second) if swapped else None
            answer = await story.first(first, storage)
            answers = (answer, early if swapped else await story.second(second))
            found.append((answers, await story.summary()))
    return found


async def until_waiting_or_done(connection: Any, call: asyncio.Future[Any]) -> None:
    """Return once a call waits for a lock, or this call is done."""
    waiting = 0
    while not waiting and not call.done():
        [(waiting,)] = await (await connection.execute(COUNT_WAITING)).fetchall()


OVERLAPS = [
    ("active", "follow", "amend", ""),
    ("active failed active", "follow", "finish", ""),
    ("active", "fail", "retry_failed", "live"),
    ("active failed", "retry_failed", "forget", ""),
    ("active failed", "retry_failed", "finish", "ended"),
    ("active failed", "retry_failed", "amend retention", ""),
    ("", "import", "forget", "ended"),
    ("", "import", "amend retention", "ended"),
    ("", "import", "cancel", "ended"),
]


@pytest.mark.parametrize(("state", "first", "second", "lock"), OVERLAPS)
async def test_an_order_explains_two_calls_that_overlap(
    storage: PostgresStorage, connect: Callable[[], Any], state: str, first: str, second: str, lock: str
) -> None:
    """The second call begins while the first is not committed. A lock on a table stops it between two
    statements.
    """
    story = Story(storage)
    await story.prepare(state)
    # The first use of a function in a session reads the types of its variables, and waits for a locked table.
    await storage.retry_failed("q", ["unknown"])
    blocker, watcher = await connect(), await connect()
    await watcher.set_autocommit(True)
    answer = await story.first(first, InTransaction(storage, blocker))
    if lock:
        await blocker.execute(f"LOCK TABLE {lock} IN ACCESS EXCLUSIVE MODE")
    call = asyncio.ensure_future(story.second(second))
    await until_waiting_or_done(watcher, call)
    await blocker.commit()
    answers = (answer, await call)

    assert (answers, await story.summary()) in await orders(state, first, second)


@pytest.mark.parametrize("verb", ["cancel", "forget"])
async def test_an_id_that_came_during_a_batch_is_found_after_its_end(
    storage: PostgresStorage, connect: Callable[[], Any], verb: str
) -> None:
    """The batch waits for `b`; meanwhile `a` is enqueued and claimed, and ends with a follow-up `a`."""
    blocker, watcher, settler = await connect(), await connect(), await connect()
    await watcher.set_autocommit(True)
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="b", run_at=FAR))])
    await blocker.execute("SELECT 1 FROM live WHERE id = 'b' FOR UPDATE")
    call = asyncio.ensure_future(getattr(storage, verb)("q", ["b", "a"]))
    await until_waiting(watcher, 1)
    story = Story(storage)
    await story.prepare("active")
    await story.first("follow", InTransaction(storage, settler))
    await blocker.commit()
    await until_waiting_or_done(watcher, call)
    await settler.commit()
    answers = await call

    [slot] = await storage.get("q", ["a"])
    assert (answers[1], slot.current) == ("cancelled" if verb == "cancel" else True, None)
