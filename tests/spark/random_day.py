"""Some hours of two queues, with random operations from a fixed seed: all kinds of ends and conflicts."""

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

#: 2026-11-20 22:30 UTC, so that midnight comes early.
BEGIN = 1_795_213_800_000
#: The second name has 400 bytes, too many for a folder, and characters that a folder name cannot contain.
QUEUES = ("mail", "007 / ü=%" * 40)
IDS = 12


class RandomDay:
    """Applies random operations to a storage opened with clock="manual"."""

    def __init__(self, storage: Storage, seed: int = 1, *, start: int = BEGIN) -> None:
        self.storage = storage
        self.now = start
        self.random = Random(seed)
        self.claimed: dict[str, list[tuple[str, int]]] = {queue: [] for queue in QUEUES}
        self.leases: dict[str, str] = {}

    async def prepare(self, *, all_events_of: str | None = None) -> None:
        """Keep all events in the log, and record all events of one queue."""
        for queue in QUEUES:
            level: LogLevel = "all" if queue == all_events_of else "runs"
            await self.storage.configure(
                queue, SettingsPatch(log_age=10**12, log_bytes=2**40, log_level=level), now=self.now
            )

    async def advance(self, steps: int) -> None:
        """Apply so many operations, most of them at almost the same time."""
        for _ in range(steps):
            self.now += self.random.choice((0, 1, 250, 4_000, 31_000, 60_000, 200_000))
            queue = self.random.choice(QUEUES)
            await self.random.choice(
                (self.enqueue, self.enqueue, self.claim, self.settle, self.settle, self.reap_or_cancel)
            )(queue)

    async def enqueue(self, queue: str) -> None:
        id = f"id {self.random.randrange(IDS)}"
        delay = self.random.choice((None, None, None, 5_000, 130_000))
        conflict = self.random.choice((Update(), Update(run_at="later"), Reject(), Update(data=False)))
        job = NewJob(id=id, data=JobData(payload=b"1"), delay=delay)
        await self.storage.enqueue(queue, [EnqueueRequest(job=job, on_conflict=conflict)], now=self.now)

    async def claim(self, queue: str) -> None:
        lease = self.leases.get(queue)
        claim = None if lease is None else await self.storage.claim(queue, lease, 2, now=self.now)
        if claim is None or claim.lost:
            holder = f"worker-{self.random.randrange(3)}"
            granted = await self.storage.grant([queue], 240_000, holder, now=self.now)
            self.leases[queue] = granted.lease
            claim = await self.storage.claim(queue, granted.lease, 2, now=self.now)
        self.claimed[queue] += [(job.id, job.run.fence) for job in claim.jobs if job.run]

    async def settle(self, queue: str) -> None:
        if not self.claimed[queue]:
            return
        id, fence = self.claimed[queue].pop(self.random.randrange(len(self.claimed[queue])))
        settlement = Settlement(id=id, fence=fence, action=self.random_action())
        await self.storage.settle(queue, [settlement], now=self.now)

    def random_action(self) -> SettleAction:
        error, later = (
            Error(type=self.random.choice(("ValueError", "OSError"))),
            self.random.choice((0, 40_000)),
        )
        return self.random.choice(
            (
                Complete(), Complete(), Complete(), Fail(error=error), Cancelled(), Release(),
                RetryLater(delay=later, error=error), RetryLater(cause="timeout", error=error),
            )
        )  # fmt: skip

    async def reap_or_cancel(self, queue: str) -> None:
        await self.storage.reap(queue, 100, now=self.now)
        if self.random.random() < 0.3:
            await self.storage.cancel(queue, [f"id {self.random.randrange(IDS)}"], now=self.now)
