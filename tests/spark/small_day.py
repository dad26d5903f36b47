"""Some hours in the life of two queues, by chance but always the same: every kind of end and conflict."""

from __future__ import annotations

from random import Random

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    LogLevel,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.storage.protocol import Storage

#: 2026-11-20 22:30 UTC: midnight comes early in the story.
BEGIN = 1_795_213_800_000
#: The second has signs that a folder's name cannot have, and is too long for one: 400 bytes.
QUEUES = ("mail", "007 / ü=%" * 40)
IDS = 12


class RandomDay:
    """Does one thing after another to a storage opened with clock="manual"."""

    def __init__(self, storage: Storage, seed: int = 1, *, start: int = BEGIN) -> None:
        self.storage = storage
        self.now = start
        self.chance = Random(seed)
        self.held: dict[str, list[tuple[str, int]]] = {queue: [] for queue in QUEUES}
        self.leases: dict[str, str] = {}

    async def prepare(self, *, everything: str | None = None) -> None:
        """Keep the log for good, and tell everything of one queue."""
        for queue in QUEUES:
            level: LogLevel = "all" if queue == everything else "runs"
            await self.storage.configure(
                queue, SettingsPatch(log_age=10**12, log_bytes=2**40, log_level=level), now=self.now
            )

    async def live(self, steps: int) -> None:
        """Let so many things happen, most of them close together."""
        for _ in range(steps):
            self.now += self.chance.choice((0, 1, 250, 4_000, 31_000, 60_000, 200_000))
            queue = self.chance.choice(QUEUES)
            await self.chance.choice(
                (self.enqueue, self.enqueue, self.claim, self.settle, self.settle, self.rest)
            )(queue)

    async def enqueue(self, queue: str) -> None:
        id = f"id {self.chance.randrange(IDS)}"
        delay = self.chance.choice((None, None, None, 5_000, 130_000))
        how = self.chance.choice((Update(), Update(run_at="later"), Reject(), Update(data=False)))
        job = NewJob(id=id, data=JobData(payload=b"1"), delay=delay)
        await self.storage.enqueue(queue, [EnqueueRequest(job=job, on_conflict=how)], now=self.now)

    async def claim(self, queue: str) -> None:
        lease = self.leases.get(queue)
        claim = None if lease is None else await self.storage.claim(queue, lease, 2, now=self.now)
        if claim is None or claim.lost:
            holder = f"worker-{self.chance.randrange(3)}"
            granted = await self.storage.grant([queue], 240_000, holder, now=self.now)
            self.leases[queue] = granted.lease
            claim = await self.storage.claim(queue, granted.lease, 2, now=self.now)
        self.held[queue] += [(job.id, job.run.fence) for job in claim.jobs if job.run]

    async def settle(self, queue: str) -> None:
        if not self.held[queue]:
            return
        id, fence = self.held[queue].pop(self.chance.randrange(len(self.held[queue])))
        settled = Settlement(id=id, fence=fence, action=self.how())
        await self.storage.settle(queue, [settled], now=self.now)

    def how(self) -> SettleAction:
        error, later = (
            Error(type=self.chance.choice(("ValueError", "OSError"))),
            self.chance.choice((0, 40_000)),
        )
        return self.chance.choice(
            (
                Complete(), Complete(), Complete(), Fail(error=error), Cancelled(), Release(),
                RetryLater(delay=later, error=error), RetryLater(cause="timeout", error=error),
            )
        )  # fmt: skip

    async def rest(self, queue: str) -> None:
        await self.storage.reap(queue, 100, now=self.now)
        if self.chance.random() < 0.3:
            await self.storage.cancel(queue, [f"id {self.chance.randrange(IDS)}"], now=self.now)
