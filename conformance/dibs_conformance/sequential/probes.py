"""Probes: each one tests a single rule, in a situation that random examples do not reach.

Some rules are not a part of the oracle, either. In the report each probe is a law. Each probe runs in a new
location.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from attrs import frozen

from dibs.model.job import Error, JobData, NewJob, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    Release,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.model.results import State, WaitResult
from dibs.storage.protocol import Clock, Storage
from dibs_conformance.sequential import optional_calls
from dibs_conformance.sequential.bad_calls import check_bad_calls
from dibs_conformance.sequential.optional_calls import check_end_watches, check_key_sets
from dibs_conformance.sequential.waits import check_idle_waits, check_progress_waits, check_waits_under_limits
from dibs_conformance.verbs.actions import START

NOW = 1_767_225_600_000
HOUR = 3_600_000
#: Numbers of ids: those that wait all the time, those that end before the reads, those removed during them.
WAITING, ENDED, GOING = 1020, 30, 60
PAGE = 250
PARTS = (1, 2, 7)


class BusyQueue:
    """A queue that changes before each page that is read from it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # Scripts and lengths are mixed, and the ids are enqueued out of order.
        self.waiting = {f"{'aÄz漢'[n % 4]}{n * n % 7919}-{n}" for n in range(WAITING)}
        self.ended = {f"{'eß'[n % 2]}nd {n}" for n in range(ENDED)}
        self._going = [f"{'gΩ'[n % 2]}o {n}" for n in range(GOING)]
        self._lease = ""
        self._changes = 0

    async def fill(self) -> None:
        self._lease = (await self.storage.grant(["q"], HOUR, "kit", now=NOW)).lease
        await self._enqueue(sorted(self.ended))
        await self._end(ENDED)
        ids = [*sorted(self.waiting), *self._going]
        for start in range(0, len(ids), 600):
            await self._enqueue(ids[start : start + 600])

    async def _enqueue(self, ids: Sequence[str], priority: int = 0) -> None:
        data = JobData(priority=priority)
        await self.storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids], now=NOW)

    async def _end(self, limit: int) -> None:
        jobs = (await self.storage.claim("q", self._lease, limit, now=NOW)).jobs
        ends = [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]
        await self.storage.settle("q", ends, now=NOW)

    async def change(self) -> None:
        """Change the queue: remove a job, add a job that stays, and add a job that completes."""
        self._changes += 1
        if self._going:
            await self.storage.forget("q", [self._going.pop()], now=NOW)
        await self._enqueue([f"m{self._changes}"])
        await self._enqueue([f"urgent {self._changes}"], priority=9)
        await self._end(1)

    async def read(
        self, state: State | None, after: str | None, until: str | None, *, repeat: bool
    ) -> list[str]:
        """Return the ids of one part of a listing, or of an export if `state` is None.

        Change the queue before each page. With `repeat`, read each page twice.
        """
        found: list[str] = []
        # A storage with a bug may return pages without end, so the number of ids is limited.
        while len(found) < 2 * (WAITING + ENDED + GOING):
            await self.change()
            if repeat:
                await self._page(state, after, until)
            ids, after = await self._page(state, after, until)
            found += ids
            if after is None:
                break
        return found

    async def _page(
        self, state: State | None, after: str | None, until: str | None
    ) -> tuple[list[str], str | None]:
        if state is None:
            page = await self.storage.export("q", after=after, until=until, limit=PAGE)
            return [record.id for record in page.records], page.after
        listed = await self.storage.list("q", state, after=after, until=until, limit=PAGE, now=NOW)
        return [id for id, _ in listed.items], listed.after


async def check_partitioned_reads(storage: Storage) -> tuple[int, list[str]]:
    """Read an export and a listing, each in 1, 2 and 7 parts.

    Return the number of reads, and a description of each wrong result.
    """
    busy = BusyQueue(storage)
    await busy.fill()
    wrong = []
    readings: dict[State | None, set[str]] = {None: busy.waiting | busy.ended, "waiting": busy.waiting}
    for state, staying in readings.items():
        for parts in PARTS:
            name = "an export" if state is None else f"the listing {state}"
            wrong += [
                f"{name} in {parts} parts: {why}"
                for why in await find_differences(busy, state, staying, parts)
            ]
    return len(readings) * len(PARTS), wrong


async def find_differences(busy: BusyQueue, state: State | None, staying: set[str], parts: int) -> list[str]:
    """Read all parts twice. `staying` are the ids that must be in exactly one part, the same in both reads.

    Return a description of each difference.
    """
    cuts = await busy.storage.split("q", parts, state=state)
    if len(cuts) >= parts:
        return [f"{len(cuts)} cursors, expected at most {parts - 1}"]
    bounds = list(zip((None, *cuts), (*cuts, None), strict=True))[::-1]
    first, again = [
        [await busy.read(state, *part, repeat=repeat) for part in bounds] for repeat in (False, True)
    ]
    times = Counter(id for part in first for id in part if id in staying)
    missing, doubled = staying - times.keys(), [id for id, count in times.items() if count > 1]
    moved = [one for one, other in zip(first, again, strict=True) if staying & {*one} != staying & {*other}]
    return [
        *([f"{len(missing)} ids are in no part, for example {min(missing)!r}"] if missing else []),
        *([f"{len(doubled)} ids are in two parts, for example {min(doubled)!r}"] if doubled else []),
        *([f"in the second read, {len(moved)} parts had other ids"] if moved else []),
    ]


#: The number of checks that a probe made, and a description of each wrong result.
ProbeResult = tuple[int, list[str]]

#: A number of jobs above 10,000, up to which counts must be exact.
MANY = 10_001
BATCH = 1_000
#: Size limit of the log in bytes, far less than the events that are written.
LOG_BYTES = 20_000
LONG_ID = 400


@frozen
class Probe:
    """A law with the function that checks it.

    The function gets a storage that was opened with the clock of the probe.
    """

    name: str
    section: str
    sentence: str
    run: Callable[[Storage], Awaitable[ProbeResult]]
    #: The capability without which a storage is not probed; "" to probe every storage.
    needs: str = ""
    clock: Clock = "manual"


async def large_counts(storage: Storage) -> ProbeResult:
    """Count 10,001 jobs: the count must be exact, or marked approximate."""
    wrong = []
    for start in range(0, MANY, BATCH):
        ids = range(start, min(start + BATCH, MANY))
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=str(id))) for id in ids], now=START)
    counts = (await storage.counts(["q"], now=START))["q"]
    if counts.waiting != MANY and not counts.approximate:
        wrong.append(f"{MANY} jobs wait; the count is {counts.waiting} and not marked approximate")
    return 1, wrong


async def bounded_log(storage: Storage) -> ProbeResult:
    """Write far more events than `log_bytes` allows, prune, and read on from an offset before them."""
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
        wrong.append(
            f"300 events of {LONG_ID} bytes were kept in {LOG_BYTES} bytes, and the reader got no fell_off"
        )
    if len(page.events) >= 300 or not page.events or not page.events[-1][1].id.startswith("9-29-"):
        wrong.append(f"{len(page.events)} events were left; expected the newest without the oldest")
    return 1, wrong


async def wake_up_outcomes(storage: Storage) -> ProbeResult:
    """End ids in every way while a waiter listens; compare its outcomes and ids with the stored ones."""
    actions: dict[str, SettleAction] = {
        "done": Complete(result=b"1"),
        "failed": Fail(error=Error(type="E", message="no")),
        "gone": Cancelled(),
        "back": Release(),
    }
    ids = [*actions]
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=START)
    since = (await storage.wait(["q"], for_="ids", ids=ids, timeout=0)).since
    lease = (await storage.grant(["q"], 60_000, "kit", now=START)).lease
    jobs = (await storage.claim("q", lease, 10, now=START)).jobs
    await storage.settle(
        "q",
        [Settlement(id=job.id, fence=job.run.fence, action=actions[job.id]) for job in jobs if job.run],
        now=START,
    )
    wake = await storage.wait(["q"], for_="ids", ids=ids, since=since, timeout=3)
    slots = dict(zip(ids, await storage.get("q", ids, now=START), strict=True))
    return len(ids), [
        f"a wake-up for {id} carried {carried}; the stored outcome is {slots[id].outcome}"
        for id, carried in wake.outcomes.items()
        if id not in slots or carried != slots[id].outcome
    ] + _missing_ends(wake, slots)


def _missing_ends(wake: WaitResult, slots: Mapping[str, Slot]) -> list[str]:
    """Return a message for each ended id that a wake-up does not name, unless it names no ids at all.

    A wait that ended by its timeout names no ids: the storage may lose a wake-up.
    """
    if wake.ended is None or not wake.woken:
        return []
    return [
        f"{id} ended, and the wake-up names only {sorted(wake.ended)}"
        for id, slot in slots.items()
        if slot.outcome is not None and id not in wake.ended
    ]


PROBES = (
    Probe(
        "every verb refuses bad arguments",
        "4.8; 4, Limits; 3, The queue of worker records",
        "An argument of a wrong type or outside its range gets the same error from every storage, before "
        "anything is written.",
        check_bad_calls,
    ),
    Probe(
        "large counts are exact or marked approximate",
        "3, Queues as a whole",
        "A count above 10,000 is exact or marked approximate.",
        large_counts,
    ),
    Probe(
        "the log is bounded by size",
        "3, Events",
        "Beyond log_bytes the oldest events are removed, and a reader that missed events gets fell_off.",
        bounded_log,
    ),
    Probe(
        "the parts of a read are complete",
        "3, Queues as a whole",
        "A job that exists from the split until the last read is in exactly one part, once.",
        check_partitioned_reads,
    ),
    Probe(
        "an idle wait does not end",
        "3, Wake-ups",
        "A wait for a queue in which nothing changes lasts until its timeout, apart from a few wrong hints.",
        check_idle_waits,
    ),
    Probe(
        "progress is told",
        "3, Wake-ups",
        "A report with progress ends waits for progress alone; a late holder's report and a memo end none.",
        check_progress_waits,
    ),
    Probe(
        "a wake-up carries the stored outcome",
        "3, Wake-ups",
        "A wake-up carries the same outcome as a read, unless the id changed in between. If it names the ids "
        "that ended, it names all of them.",
        wake_up_outcomes,
    ),
    Probe(
        "jobs that may not start end no wait",
        "3, Wake-ups",
        "Jobs that no claim may take are no reason to end a wait for work early.",
        check_waits_under_limits,
        needs="limits",
    ),
    Probe(
        "an enqueue of one job acts as one of a batch",
        "3, enqueue",
        "An enqueue of one job, by each method of the storage, is folded, blocked, merged, rejected or "
        "repeated as in a batch.",
        optional_calls.check_enqueues,
        clock="system",
    ),
    Probe(
        "a batch with a key set acts as an enqueue",
        "3, enqueue",
        "A batch whose request keys are kept as a key set has the statuses and effects of an enqueue with "
        "request keys, and is enqueued once for each number.",
        check_key_sets,
    ),
    Probe(
        "a claim and an end of one job act as larger ones",
        "3, claim",
        "A claim of one job obeys pauses, limits, cancels and priorities, and only the holder ends a run.",
        optional_calls.check_runs,
        clock="system",
    ),
    Probe(
        "a token reports the ends after it",
        "3, Wake-ups",
        "A wait with a token reports an end between the two, with the outcome of that run.",
        optional_calls.check_tokens,
        clock="system",
    ),
    Probe(
        "a watch reports the next end of its id",
        "3, Wake-ups",
        "A watch is called after the next end of its id, with the stored outcome or without one. It is not "
        "called after it was stopped.",
        check_end_watches,
        clock="system",
    ),
)
