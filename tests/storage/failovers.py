"""Rounds of enqueue, claim and complete before and after a failover, and a comparison of their numbers.

The rounds work for every storage. Before the failover, the server that dies hands out numbers that the new
server never learns of. Afterwards, no number may occur again, none may be smaller, and no late write counts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import define, field

from dibs.model.job import Job, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.protocol import Storage

#: Seconds by which the clock of the new server differs from that of the lost one.
SKEWS = (0, 10, -10)
#: Rounds whose writes the new server never learns of, as many as it then makes itself.
ROUNDS = 60
QUEUE = "q"


def skewed_clock(seconds: int) -> dict[str, str]:
    """Return the environment of a server whose clock is off. Skip the test if libfaketime is missing."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if seconds and not found:
        pytest.skip("libfaketime is not installed")
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{seconds:+d}s"} if seconds else {}


@define
class Rounds:
    """The numbers of some rounds, and the end of the event log after them."""

    revisions: list[int] = field(factory=list)
    fences: list[int] = field(factory=list)
    offset: str = ""

    @property
    def numbers(self) -> list[int]:
        return self.revisions + self.fences


async def play_rounds(storage: Storage, count: int = ROUNDS, *, late: tuple[int, ...] = ()) -> Rounds:
    """Enqueue, claim and complete two ids `count` times, one of them with a successor.

    Before each completion, settle the run with each fence in `late`; every answer must be `lost`.
    """
    played = Rounds()
    lease = (await storage.grant([QUEUE], 600_000, "worker")).lease
    for _ in range(count):
        played.revisions += await enqueue(storage, "a", "b")
        jobs = (await storage.claim(QUEUE, lease, 2)).jobs
        played.revisions += await enqueue(storage, "a")
        jobs_of_a = [job for job in jobs if job.id == "a"]
        answers = await storage.settle(QUEUE, [ended("a", fence) for fence in late])
        assert {"lost"} >= {answer.status for answer in answers}
        await complete(storage, jobs, played)
        assert ["a"] == [job.id for job in jobs_of_a]
        await complete(storage, (await storage.claim(QUEUE, lease, 1)).jobs, played)
    played.offset = (await storage.events(QUEUE, limit=1000)).offset
    return played


async def enqueue(storage: Storage, *ids: str) -> list[int]:
    answers = await storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id)) for id in ids])
    return [answer.revision for answer in answers]


async def complete(storage: Storage, jobs: tuple[Job, ...], played: Rounds) -> None:
    fences = [job.run.fence for job in jobs if job.run]
    played.fences += {*fences}
    answers = await storage.settle(QUEUE, [ended(job.id, job.run.fence) for job in jobs if job.run])
    assert ["done"] * len(jobs) == [answer.status for answer in answers]


def ended(id: str, fence: int) -> Settlement:
    return Settlement(id=id, fence=fence, action=Complete())


async def check_after_loss(storage: Storage, kept: Rounds, lost: Rounds, *, more_events: int = 0) -> None:
    """Play rounds on a server that knows `kept` and never learned of `lost`, and compare all numbers.

    The log has `more_events` that were added after the loss.
    """
    after = await play_rounds(storage, late=tuple(lost.fences[-300:]))
    before = kept.numbers + lost.numbers
    shown = await storage.events(QUEUE, after=lost.offset, limit=1000)

    assert not set(before) & set(after.numbers)
    assert min(after.numbers) > max(before)
    assert 3 * ROUNDS + more_events == len(shown.events)
