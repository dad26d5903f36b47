"""Correct histories to test the checker: random calls on the memory storage, with artificial overlap.

The calls are made one after the other, so an order that explains every answer exists. Then each call is moved
to begin earlier and end later, and some answers are removed. Any violation that the checker finds in such a
history is a false alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from attrs import define, field
from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, NewJob, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import ClaimResult, ExportRecord
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs_conformance.history import RecordedStep
from dibs_conformance.history.queue_calls import PATCHES
from dibs_conformance.history.recorder import Recorder

QUEUE, FAILED = "q", "q!fail"
IDS = ("a", "b", "c")
KEEPS_LOG_LEVEL = [patch for patch in PATCHES if patch.log_level is UNSET]
#: Time between two calls. `with_overlaps` stretches a call by up to four of them on each side.
TIME_STEP = 100


@define
class RandomHistory:
    """Makes the random calls of one history."""

    storage: Storage
    random: Random
    now: int = 1_767_225_600_000
    leases: list[str] = field(factory=list)
    runs: list[tuple[str, int]] = field(factory=list)
    revisions: list[tuple[str, int]] = field(factory=list)

    async def step(self) -> None:
        """Make one random call."""
        await self.random.choice(CALLS)(self)

    def keep_runs(self, claim: ClaimResult) -> None:
        self.runs += [(job.id, job.run.fence) for job in claim.jobs if job.run]

    def lease(self) -> str:
        return self.random.choice(self.leases[-2:])

    def run(self) -> tuple[str, int]:
        return self.random.choice(self.runs[-4:])

    async def grant(self) -> None:
        ttl = self.random.choice((30, 60_000))
        self.leases.append((await self.storage.grant([QUEUE, FAILED], ttl, "w", now=self.now)).lease)

    async def enqueue(self) -> None:
        requests = [self.request() for _ in range(self.random.choice((1, 1, 2)))]
        answers = await self.storage.enqueue(QUEUE, requests, now=self.now)
        self.revisions += [(r.job.id, a.revision) for r, a in zip(requests, answers, strict=True)]

    def request(self) -> EnqueueRequest:
        random = self.random
        data = JobData(payload=str(random.randrange(100)).encode(), priority=random.choice((0, 0, 1)))
        action = random.choice((Update(), Update(), Reject(), Update(data=False), Update(run_at="later")))
        key = random.choice((None, None, f"k{random.randrange(20)}"))
        job = NewJob(id=random.choice(IDS), data=data, delay=random.choice((None, None, 5, 40)))
        if random.random() < 0.15:
            update = Update(create=False, run_at=random.choice(("always", "later")))
            return EnqueueRequest(job=replace(job, data=JobData()), on_conflict=update, request_key=key)
        return EnqueueRequest(job=job, on_conflict=action, request_key=key)

    async def claim(self) -> None:
        limit = self.random.choice((1, 2, 10))
        self.keep_runs(await self.storage.claim(QUEUE, self.lease(), limit, now=self.now))

    async def claim_failed(self) -> None:
        await self.storage.claim(FAILED, self.lease(), 10, now=self.now)

    async def settle(self) -> None:
        if self.runs:
            settlements = [self.settlement() for _ in range(self.random.choice((1, 1, 2)))]
            await self.storage.settle(QUEUE, settlements, now=self.now)

    async def settle_and_claim(self) -> None:
        if self.runs:
            lease, limit = self.lease(), self.random.choice((1, 10))
            result = await self.storage.settle_and_claim(
                QUEUE, [self.settlement()], lease, limit, now=self.now
            )
            self.keep_runs(result.claim)

    def settlement(self) -> Settlement:
        id, fence = self.run()
        return Settlement(id=id, fence=fence, action=self.action())

    def action(self) -> SettleAction:
        random = self.random
        actions: tuple[SettleAction, ...] = (
            Complete(result=b"1"),
            Complete(result=b"2"),
            Fail(error=Error(type="Oops")),
            Cancelled(),
            RetryLater(),
            RetryLater(delay=20),
            Release(),
            Release(delay=20),
            HandOff(),
        )
        return random.choice(actions)

    async def report(self) -> None:
        if self.runs:
            memo = self.random.choice((b"", str(self.random.randrange(100)).encode()))
            await self.storage.report(QUEUE, *self.run(), None, memo, now=self.now)

    async def finish(self) -> None:
        if self.revisions:
            id, revision = self.random.choice(self.revisions[-5:])
            await self.storage.finish(QUEUE, id, Complete(result=b"3"), revision, now=self.now)

    async def renew(self) -> None:
        await self.storage.renew([QUEUE, FAILED], self.lease(), self.random.choice((10, 50)), now=self.now)

    async def reap(self) -> None:
        await self.storage.reap(QUEUE, 10, now=self.now)

    async def drop(self) -> None:
        await self.storage.drop([QUEUE, FAILED], self.lease(), self.random.choice((1, 10)), now=self.now)

    async def cancel(self) -> None:
        await self.storage.cancel(
            QUEUE, [self.random.choice(IDS)], running=self.random.random() < 0.5, now=self.now
        )

    async def rare_call(self) -> None:
        """Make a call that is rare in practice: amend, retry_failed or forget."""
        id, storage = self.random.choice(IDS), self.storage
        choice = self.random.randrange(4)
        if choice == 0:
            await storage.forget(QUEUE, [id], now=self.now)
        elif choice == 1:
            await storage.retry_failed(QUEUE, [id], now=self.now)
        elif choice == 2:
            await storage.amend(QUEUE, id, JobPatch(payload=b"amended"), now=self.now)
        else:
            await storage.amend(QUEUE, id, JobPatch(attributes={"a": b"1"}), now=self.now)

    async def read(self) -> None:
        await self.storage.get(QUEUE, IDS, now=self.now)

    async def call_on_queue(self) -> None:
        """Change a setting, import an id, or read the queue."""
        random, storage = self.random, self.storage
        choice = random.randrange(6)
        if choice < 3:
            await storage.configure(QUEUE, random.choice(KEEPS_LOG_LEVEL), now=self.now)
        elif choice == 3:
            number = self.now * 1000
            job = Job(
                id=random.choice(IDS), data=JobData(payload=b"imported"), run_at=self.now,
                enqueued_at=self.now, seq=number, first=number, revision=number,
            )  # fmt: skip
            record = ExportRecord(id=job.id, slot=Slot(current=job))
            await storage.import_(QUEUE, [record], now=self.now)
        elif choice == 4:
            await storage.list(QUEUE, random.choice(("waiting", "active")), now=self.now)
        else:
            await storage.export(QUEUE)

    async def pass_time(self) -> None:
        self.now += self.random.choice((1, 5, 20, 40))


#: Fields of a step that are known before the answer.
REQUEST_FIELDS = (
    *("op", "client", "began", "queue", "id", "how", "key", "payload", "replaces", "resets", "creates"),
    *("memo", "running", "lease", "limit", "result", "patch", "after"),
)

CALLS: tuple[Callable[[RandomHistory], Awaitable[None]], ...] = (
    *(RandomHistory.enqueue,) * 5,
    *(RandomHistory.claim,) * 5,
    *(RandomHistory.settle,) * 5,
    RandomHistory.settle_and_claim,
    RandomHistory.claim_failed,
    *(RandomHistory.pass_time,) * 3,
    *(RandomHistory.reap,) * 2,
    *(RandomHistory.report,) * 2,
    RandomHistory.renew,
    RandomHistory.grant,
    RandomHistory.drop,
    RandomHistory.cancel,
    RandomHistory.finish,
    RandomHistory.rare_call,
    *(RandomHistory.call_on_queue,) * 2,
    RandomHistory.read,
)


async def run_random_calls(storage: Storage, random: Random, length: int) -> list[RecordedStep]:
    """Make random calls one after the other, and return their steps."""
    steps: list[RecordedStep] = []
    ticks = iter(range(TIME_STEP, 10**12, TIME_STEP))
    recorder = Recorder(steps.append, lambda: next(ticks))
    random_history = RandomHistory(recorder.wrap(storage, "c"), random)
    await random_history.grant()
    for _ in range(length):
        await random_history.step()
    await random_history.read()
    return steps


def with_overlaps(steps: list[RecordedStep], random: Random) -> list[RecordedStep]:
    """Stretch the calls so that they overlap, and remove some answers. The last read is unchanged."""
    calls = sorted({step.call for step in steps})
    last = calls[-1]
    early = {call: random.choice((0, 0, 50, 150, 400)) for call in calls}
    late = {call: random.choice((0, 0, 50, 150, 400)) for call in calls}
    # A client without the answer to its claim has no fence to settle with.
    settled = {(step.id, step.fence) for step in steps if step.op == "settle"}
    used = {step.call for step in steps if step.op == "claim" and (step.id, step.fence) in settled}
    lost = {call for call in calls if random.random() < 0.05 and call not in used | {last}}
    steps_out = []
    for step in steps:
        if step.ended is None or step.call == last:
            steps_out.append(step)
            continue
        began, ended = step.began - early[step.call], step.ended + late[step.call]
        moved = replace(step, began=began, ended=ended, client=f"c{step.call}")
        steps_out.append(without_answer(moved) if step.call in lost else moved)
    return steps_out


def without_answer(step: RecordedStep) -> RecordedStep:
    """Return the step as a client without the answer would record it."""
    fields = {name: getattr(step, name) for name in REQUEST_FIELDS}
    if step.op in ("settle", "report"):
        fields["fence"] = step.fence
    if step.op == "finish":
        fields["revision"] = step.revision
    if step.op == "import":
        fields |= {"first": step.first, "revision": step.revision}
    if step.op in ("claim", "reap"):
        fields |= {"id": "", "payload": ""}
    if step.op == "grant":
        fields["lease"] = ""
    return RecordedStep(**{**fields, "status": "unknown", "ended": None, "call": 0})


def make_history(seed: int, length: int = 40) -> list[RecordedStep]:
    """Return one correct history with overlapping calls."""
    random = Random(seed)
    steps = asyncio.run(run_in_memory(random, length))
    return with_overlaps(steps, random)


async def run_in_memory(random: Random, length: int) -> list[RecordedStep]:
    async with open_storage("memory:", "manual") as storage:
        return await run_random_calls(storage, random, length)
