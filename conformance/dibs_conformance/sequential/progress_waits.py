"""A probe of reports and waits: a report with progress ends waits for progress alone, and names its id.

A storage may end a wait by a rare wrong hint, so only a wait that is woken in each of ATTEMPTS rounds counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from dibs.model.results import WaitResult
from dibs.storage.protocol import Storage, Watch
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps

NOW: Final = 1_767_225_600_000
ATTEMPTS: Final = 4
#: Seconds for which a wait is watched after the report.
PATIENCE: Final = 0.3
#: Seconds from the begin of the waits to the reports. A wait that begins later compares its token.
BEFORE_REPORTS: Final = 0.05
#: Ms after which the first lease of a queue expires.
EXPIRY: Final = 10
#: Waits that no report may end: the name of the report, the watch and the ids of the wait, and the report.
IDLE: Final[tuple[tuple[str, Watch, Sequence[str], str], ...]] = (
    ("a report with progress", "ids", ["a"], "report a 0.5"),
    ("a report with progress", "events", [], "report a 0.5"),
    ("a report with progress", "work", [], "report a 0.5"),
    ("a report of another id", "progress", ["b"], "report a 0.5"),
    ("a report of a late holder", "progress", ["a"], "report late 0.5"),
    ("a report of a memo alone", "progress", ["a"], "report a memo=m"),
)


async def check_progress_waits(storage: Storage) -> tuple[int, list[str]]:
    """Report while clients wait. Return the number of waits, and a text for each wrong one."""
    left = list(range(len(IDLE)))
    now = NOW
    for attempt in range(ATTEMPTS):
        prepared = []
        for number in left:
            now += EXPIRY
            prepared.append(await claim_twice(storage, f"progress-{number}-{attempt}", now))
        now += EXPIRY
        waits = (
            wait_for_report(storage, calls, now, *IDLE[number][1:])
            for number, calls in zip(left, prepared, strict=True)
        )
        found = await asyncio.gather(*waits)
        left = [number for number, one in zip(left, found, strict=True) if one.woken]
    wrong = [f"{IDLE[number][0]} ended a wait for {IDLE[number][1]}" for number in left]
    return len(IDLE) + 1, wrong + await find_wrong_names(storage, now + EXPIRY)


async def wait_for_report(
    storage: Storage, calls: HistoryCalls, now: int, watch: Watch, ids: Sequence[str], report: str
) -> WaitResult:
    begun = await storage.wait([calls.queue], for_=watch, ids=ids, timeout=0)
    waiting = asyncio.create_task(
        storage.wait([calls.queue], for_=watch, ids=ids, since=begun.since, timeout=PATIENCE)
    )
    await asyncio.sleep(BEFORE_REPORTS)
    await play_steps(storage, calls, report, now=now)
    return await waiting


async def find_wrong_names(storage: Storage, now: int) -> list[str]:
    """Wait for progress of two ids, and report on one. If the wake-up names ids, it names that one."""
    calls = await claim_twice(storage, "progress-names", now)
    found = await wait_for_report(storage, calls, now + EXPIRY, "progress", ["a", "b"], "report a 0.5")
    if not found.woken or found.reported in (None, frozenset({"a"})):
        return []
    return [f"a wake-up after a report of a names {sorted(found.reported or ())}"]


async def claim_twice(storage: Storage, queue: str, now: int) -> HistoryCalls:
    """Enqueue job `a`, and claim it twice: the run of the first lease, `late`, is reaped."""
    calls = HistoryCalls(queue)
    await play_steps(storage, calls, f"enqueue a; grant {EXPIRY}; late = claim", now=now)
    await play_steps(storage, calls, "reap 1; grant 60000; claim", now=now + EXPIRY)
    return calls
