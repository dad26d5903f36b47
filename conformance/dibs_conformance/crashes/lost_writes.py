"""A test that loses writes: a copy of the files of a storage takes their place, as a restored backup does.

The numbers of the lost writes were handed out, and their holders may still use them.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack

from attrs import frozen

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.protocol import Storage
from dibs_conformance.crashes.power_loss import folder_of
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.report.exceptions import StorageFailed, exception_failure
from dibs_conformance.report.values import law_report
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs.actions import START

LAW = "no number of a lost write is drawn again"
SECTION = "1, Numbers after a loss"
SENTENCE = (
    "After a copy of its files has taken their place, a storage draws numbers above all lost ones, refuses a "
    "lost fence, and shows each new event to a reader with a lost offset."
)
QUEUE = "lost"
HOUR = 3_600_000
#: Ms by which the lost writes are later than those after the loss, up to the 50 minutes of the contract; and
#: whether the storage that made them stays open.
LOSSES = ((0, False), (1, True), (50 * 60_000, False), (0, True))


@frozen
class Drawn:
    """The numbers that the writes of one incarnation drew, and the last offset of its log."""

    numbers: frozenset[int]
    fence: int
    offset: str


def try_lost_writes(plan: LevelPlan, until: float) -> Findings:
    """Lose the writes since a copy, several times at one location, whatever the deadline `until` is."""
    del until
    location, wrong = plan.locations.new(), ""
    try:
        for number, (later, stays_open) in enumerate(LOSSES):
            now = START + 3 * number * HOUR
            wrong = wrong or asyncio.run(lose_writes(plan, location, now, later, stays_open=stays_open))
        failure = LawFailure(law=LAW, why=wrong) if wrong else None
    except Exception as error:  # noqa: BLE001 - the storage may raise anything
        failure = exception_failure(error, law=LAW)
    law = law_report(LAW, SECTION, SENTENCE, len(LOSSES), broken=failure is not None)
    return Findings(
        histories=1,
        faults={"lost writes": len(LOSSES)},
        laws=(law,),
        failures=(failure,) if failure is not None else (),
    )


async def lose_writes(plan: LevelPlan, location: str, now: int, later: int, *, stays_open: bool) -> str:
    """Copy the files, write, put the copy in their place, and write again. Return what is wrong, or "".

    With `stays_open`, the storage that made the lost writes also makes the new ones.
    """
    folder = folder_of(plan.locations, location)
    copy = folder.with_name(f"{folder.name}-copy")
    async with plan.locations.open(location, "manual") as storage:
        await storage.configure(QUEUE, SettingsPatch(log_level="all"), now=now)
        await storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="kept"))], now=now)
    # The copy exists beside the original: a file system gives the inode of a removed file to a new one.
    shutil.copytree(folder, copy)
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(plan.locations.open(location, "manual"))
        lost = await write(storage, now + later)
        if not stays_open:
            await stack.aclose()
        shutil.rmtree(folder)
        copy.rename(folder)
        if not stays_open:
            storage = await stack.enter_async_context(plan.locations.open(location, "manual"))
        if wrong := await check_incarnation(storage, now, lost):
            return wrong
    async with plan.locations.open(location, "manual") as storage:
        shown = {event.id for _, event in (await storage.events(QUEUE, after=lost.offset, now=now)).events}
    missed = {"kept", "new"} - shown
    return f"a reader with a lost offset misses the events of {sorted(missed)}" if missed else ""


async def write(storage: Storage, now: int) -> Drawn:
    """Enqueue a job, and claim it and the job `kept`."""
    await storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="new"))], now=now)
    lease = (await storage.grant([QUEUE], HOUR, "kit", now=now)).lease
    jobs = {job.id: job for job in (await storage.claim(QUEUE, lease, 2, now=now)).jobs}
    if jobs.keys() != {"kept", "new"}:
        why = f"a claim of kept and new took {sorted(jobs)}: the storage does not have the data of its files"
        raise StorageFailed(LawFailure(law=LAW, why=why))
    fences = {id: job.run.fence for id, job in jobs.items() if job.run is not None}
    page = await storage.events(QUEUE, limit=1_000, now=now)
    return Drawn(
        frozenset((jobs["new"].seq, jobs["new"].revision, *fences.values())), fences["kept"], page.offset
    )


async def check_incarnation(storage: Storage, now: int, lost: Drawn) -> str:
    """Make the same writes again, with the right of a lost holder among them. Return what is wrong, or ""."""
    new = await write(storage, now)
    if min(new.numbers) <= max(lost.numbers):
        return f"the number {min(new.numbers)} was drawn after the loss; {max(lost.numbers)} was lost"
    late, held = (Settlement(id="kept", fence=fence, action=Complete()) for fence in (lost.fence, new.fence))
    [answer] = await storage.settle(QUEUE, [late], now=now)
    if answer.status != "lost":
        return f"a settlement with the lost fence {lost.fence} was answered {answer.status!r}"
    await storage.settle(QUEUE, [held], now=now)
    await storage.forget(QUEUE, ["kept", "new"], now=now)
    return ""
