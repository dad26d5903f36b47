"""What is asked of a storage directly, where chance would not lead and the oracle has no opinion.

Each ask is a law of its own with a place of its own; it counts what it tried, and tells what was wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    JobPatch,
    Release,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.bad_input import wrong_verdicts, wrongly_refused
from dibs_conformance.sequential.partitioned_reads import parts_of_readings
from dibs_conformance.sequential.state_machine import START

#: How many were tried, and what was wrong.
ProbeResult = tuple[int, list[str]]

#: More than a count must be exact about.
MANY = 10_001
BATCH = 1_000
#: Of a log that is bounded: so many bytes, far less than what is put into it.
LOG_BYTES = 20_000
LONG_ID = 400


@dataclass(frozen=True)
class Probe:
    """A law, and how a storage that was opened with a manual clock is asked about it."""

    name: str
    section: str
    sentence: str
    run: Callable[[Storage], Awaitable[ProbeResult]]


async def large_counts(storage: Storage) -> ProbeResult:
    wrong = []
    for start in range(0, MANY, BATCH):
        ids = range(start, min(start + BATCH, MANY))
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=str(id))) for id in ids], now=START)
    counts = (await storage.counts(["q"], now=START))["q"]
    if counts.waiting != MANY and not counts.approximate:
        wrong.append(f"{MANY} jobs wait; counted {counts.waiting}, and not told as approximate")
    return 1, wrong


async def bounded_log(storage: Storage) -> ProbeResult:
    """Read the first event, write far more than fits, prune, and go on reading."""
    await storage.configure("q", SettingsPatch(log_level="all", log_bytes=LOG_BYTES), now=START)
    offset = (await storage.events("q", limit=1, now=START)).offset
    for batch in range(10):
        ids = [f"{batch}-{n}-{'x' * LONG_ID}" for n in range(30)]
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=START)
    while (await storage.prune("q", 1_000, now=START)).more:
        pass
    page = await storage.events("q", after=offset, limit=1_000, now=START)
    wrong = []
    if not page.fell_off:
        wrong.append(f"300 events of {LONG_ID} bytes were kept in {LOG_BYTES}, and no reader fell off")
    if len(page.events) >= 300 or not page.events or not page.events[-1][1].id.startswith("9-29-"):
        wrong.append(f"{len(page.events)} events were left; the newest must be, and the oldest not")
    return 1, wrong


async def replaced_retention(storage: Storage) -> ProbeResult:
    """A patch that names one part of a retention."""
    kept, patch = OutcomeRetention(completed=5_000, failed=77), OutcomeRetention(failed=10)
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a", data=JobData(retention=kept)))], now=START)
    await storage.amend("q", "a", JobPatch(retention=patch), now=START)
    [slot] = await storage.get("q", ["a"], now=START)
    amended = slot.current.data.retention if slot.current else None
    await storage.configure("q", SettingsPatch(retention=kept), now=START)
    configured = (await storage.configure("q", SettingsPatch(retention=patch), now=START)).retention
    said = {"amend": amended, "configure": configured}
    return len(said), [f"{verb} left {found}, not {patch}" for verb, found in said.items() if found != patch]


async def wake_up_outcomes(storage: Storage) -> ProbeResult:
    """End ids in every way while their ends are listened to, and hold what is told against what is there."""
    hows: dict[str, SettleAction] = {
        "done": Complete(result=b"1"),
        "failed": Fail(error=Error(type="E", message="no")),
        "gone": Cancelled(),
        "back": Release(),
    }
    ids = [*hows]
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=START)
    since = (await storage.wait(["q"], for_="ids", ids=ids, timeout=0)).since
    lease = (await storage.grant(["q"], 60_000, "kit", now=START)).lease
    jobs = (await storage.claim("q", lease, 10, now=START)).jobs
    await storage.settle(
        "q",
        [Settlement(id=job.id, fence=job.run.fence, action=hows[job.id]) for job in jobs if job.run],
        now=START,
    )
    wake = await storage.wait(["q"], for_="ids", ids=ids, since=since, timeout=3)
    slots = dict(zip(ids, await storage.get("q", ids, now=START), strict=True))
    return len(ids), [
        f"a wake-up told that {id} ended as {told}; it is {slots[id].outcome}"
        for id, told in wake.outcomes.items()
        if id not in slots or told != slots[id].outcome
    ]


PROBES = (
    Probe(
        "bad input is refused whole",
        "4, Limits",
        "Every value beyond a limit is refused before anything is written.",
        wrong_verdicts,
    ),
    Probe(
        "what is at a limit is taken",
        "4, Limits",
        "A value exactly at its limit is accepted, and kept as it was.",
        wrongly_refused,
    ),
    Probe(
        "large counts are exact or say so",
        "3, count",
        "A count above 10,000 that is not exact is told as approximate.",
        large_counts,
    ),
    Probe(
        "the log is bounded by size",
        "3, Events",
        "Beyond log_bytes the oldest events go, the newest stay, and a reader behind them is told.",
        bounded_log,
    ),
    Probe(
        "a retention is replaced whole",
        "3, amend",
        "A patch of a retention takes the place of the old one, also in the parts it does not name.",
        replaced_retention,
    ),
    Probe(
        "parts are the whole",
        "3, split",
        "Whatever is there from the split until all parts were read is in exactly one of them, once.",
        parts_of_readings,
    ),
    Probe(
        "an end that is told is the end",
        "3, Wake-ups",
        "An outcome that a wake-up brings is the one that a read finds, as long as nothing else happens.",
        wake_up_outcomes,
    ),
)
