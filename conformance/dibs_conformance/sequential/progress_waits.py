"""A probe of reports and waits: a report with progress ends waits for progress alone, and names its id.

A storage may end a wait by a rare wrong hint, so only a wait that is woken in each of ATTEMPTS rounds counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from attrs import frozen

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage, Watch

NOW: Final = 1_767_225_600_000
ATTEMPTS: Final = 4
#: Seconds for which a wait is watched after the report.
PATIENCE: Final = 0.3
#: Seconds from the begin of the waits to the reports. A wait that begins later compares its token.
BEFORE_REPORTS: Final = 0.05


@frozen
class Runs:
    """A queue with the active job `a`, the fence of an earlier run of it that was reaped, and the time."""

    queue: str
    fence: int
    late: int
    now: int


#: Ms after which the first lease expires.
EXPIRY: Final = 10
#: Makes one report.
Report = Callable[[Storage, Runs], Awaitable[Any]]


async def report_progress(storage: Storage, runs: Runs) -> None:
    await storage.report(runs.queue, "a", runs.fence, b"0.5", now=runs.now)


async def report_late(storage: Storage, runs: Runs) -> None:
    await storage.report(runs.queue, "a", runs.late, b"0.5", now=runs.now)


async def report_memo(storage: Storage, runs: Runs) -> None:
    await storage.report(runs.queue, "a", runs.fence, None, b"m", now=runs.now)


#: Waits that no report may end: the name of the report, the watch and the ids of the wait, and the report.
IDLE: Final[tuple[tuple[str, Watch, Sequence[str], Report], ...]] = (
    ("a report with progress", "ids", ["a"], report_progress),
    ("a report with progress", "events", [], report_progress),
    ("a report with progress", "work", [], report_progress),
    ("a report of another id", "progress", ["b"], report_progress),
    ("a report of a late holder", "progress", ["a"], report_late),
    ("a report of a memo alone", "progress", ["a"], report_memo),
)


async def check_progress_waits(storage: Storage) -> tuple[int, list[str]]:
    """Report while clients wait. Return the number of waits, and a text for each wrong one."""
    left = list(range(len(IDLE)))
    now = NOW
    for attempt in range(ATTEMPTS):
        prepared = []
        for number in left:
            now += 2 * EXPIRY
            prepared.append(await prepare(storage, f"progress-{number}-{attempt}", now))
        waits = (is_woken(storage, number, runs) for number, runs in zip(left, prepared, strict=True))
        woken = await asyncio.gather(*waits)
        left = [number for number, was_woken in zip(left, woken, strict=True) if was_woken]
    wrong = [f"{IDLE[number][0]} ended a wait for {IDLE[number][1]}" for number in left]
    return len(IDLE) + 1, wrong + await find_wrong_names(storage, now + 2 * EXPIRY)


async def is_woken(storage: Storage, number: int, runs: Runs) -> bool:
    """Return whether the report of a case ended its wait."""
    _, watch, ids, report = IDLE[number]
    return (await wait_for_report(storage, runs, watch, ids, report)).woken


async def wait_for_report(
    storage: Storage, runs: Runs, watch: Watch, ids: Sequence[str], report: Report
) -> WaitResult:
    begun = await storage.wait([runs.queue], for_=watch, ids=ids, timeout=0)
    waiting = asyncio.create_task(
        storage.wait([runs.queue], for_=watch, ids=ids, since=begun.since, timeout=PATIENCE)
    )
    await asyncio.sleep(BEFORE_REPORTS)
    await report(storage, runs)
    return await waiting


async def find_wrong_names(storage: Storage, now: int) -> list[str]:
    """Wait for progress of two ids, and report on one. If the wake-up names ids, it names that one."""
    runs = await prepare(storage, "progress-names", now)
    found = await wait_for_report(storage, runs, "progress", ["a", "b"], report_progress)
    if not found.woken or found.reported in (None, frozenset({"a"})):
        return []
    return [f"a wake-up after a report of a names {sorted(found.reported or ())}"]


async def prepare(storage: Storage, queue: str, now: int) -> Runs:
    """Enqueue job `a`, and claim it twice: the first lease expires."""
    await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id="a"))], now=now)
    late = await claim(storage, queue, EXPIRY, now)
    now += EXPIRY
    await storage.reap(queue, 1, now=now)
    return Runs(queue, await claim(storage, queue, 60_000, now), late, now)


async def claim(storage: Storage, queue: str, ttl: int, now: int) -> int:
    lease = (await storage.grant([queue], ttl, "kit", now=now)).lease
    [job] = (await storage.claim(queue, lease, 1, now=now)).jobs
    return job.run.fence if job.run is not None else 0
