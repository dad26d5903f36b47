"""Rules about when a job is claimed, and about the log as readers got it while others worked."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from dibs_conformance.history.by_id import (
    DEFAULTS,
    IdSteps,
    RecordedHistory,
    RecordedRun,
    SettingsTimeline,
    closed_as,
)
from dibs_conformance.history.from_log import ENDINGS
from dibs_conformance.history.rules.queues import HistoryRule, Violation, began, ended
from dibs_conformance.steps import LoggedEntry, RecordedStep

#: Negated priority, run_at and seq. The smallest is claimed first.
ClaimPosition = tuple[int, int, int]

#: The settings that hold due jobs back, or change their order, unless they have their defaults.
HOLDING = ("per_key", "rate", "key_rate", "fair", "shares")


class NotEarlyRule(HistoryRule):
    name = "R15"
    title = "not early"
    section = "2"
    sentence = "No job is claimed before its run_at."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            for claim in id_steps.claims:
                self.met += claim.run_at > 0
                if claim.run_at > claim.now:
                    why = (
                        f"the job was claimed at {claim.now}, {claim.run_at - claim.now} ms before its run_at"
                    )
                    yield self.violation(id_steps.key, why, claim)


class ClaimOrderRule(HistoryRule):
    name = "R12"
    title = "in order"
    section = "2"
    sentence = "A claim skips no job that was due during the whole claim and came earlier in claim order."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue in history.by_queue:
            settings = history.settings.get(queue)
            for taken, job in skipped_jobs(history, queue, None):
                if settings is not None and not admits_every_job(settings, taken):
                    continue
                if job is None:
                    self.met += 1
                else:
                    why = f"{taken.id!r} was claimed before {job.id!r}, which comes earlier in claim order"
                    yield self.violation((queue, taken.id), why, taken, job)


class NothingLeftRule(HistoryRule):
    name = "R16"
    title = "nothing due is left"
    section = "3, claim"
    sentence = (
        "A claim that takes fewer jobs than its limit leaves no job that was due during the whole claim."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue in history.by_queue:
            settings = history.settings.get(queue)
            short_claims = [
                step
                for step in history.short_claims.get(queue, ())
                if step.status == "short" and (settings is None or is_unlimited(settings, step))
            ]
            for step, job in skipped_jobs(history, queue, short_claims):
                if job is None:
                    self.met += 1
                else:
                    why = f"a claim found no more jobs, but {job.id!r} was due"
                    yield self.violation((queue, job.id), why, step, job)


def is_unlimited(settings: SettingsTimeline, claim: RecordedStep) -> bool:
    """Return whether the queue certainly was not paused and had no limits during a claim."""
    interval = (claim.began, ended(claim))
    is_running = settings.certain("paused", *interval) == "false"
    return (
        is_running
        and settings.certain("max_active", *interval) == "null"
        and admits_every_job(settings, claim)
    )


def admits_every_job(settings: SettingsTimeline, claim: RecordedStep) -> bool:
    """Return whether no key, no clock and no turn could hold a due job back during a claim."""
    interval = (claim.began, ended(claim))
    return all(settings.certain(name, *interval) == DEFAULTS[name] for name in HOLDING)


class WaitingJob:
    """A job that certainly waited from `since` until its claim was sent."""

    __slots__ = ("claim", "position", "since")

    def __init__(self, claim: RecordedStep, since: float) -> None:
        self.claim, self.since = claim, since
        self.position: ClaimPosition = position_of(claim)


def position_of(claim: RecordedStep) -> ClaimPosition:
    return (-claim.priority, claim.run_at, claim.seq)


def skipped_jobs(
    history: RecordedHistory, queue: str, short_claims: list[RecordedStep] | None
) -> Iterator[tuple[RecordedStep, RecordedStep | None]]:
    """Yield each claim (or each short claim) with None, and again with a job it skipped.

    One sweep over the claims in the order they were sent. A job is added once it certainly waits, and removed
    when its own claim is sent. Claims that overlap a call that may hold any job are left out.
    """
    ids, unanswered_claim = history.by_queue.get(queue, []), history.first_unanswered_claim(queue)
    waiting = sorted(
        (job for id_steps in ids for job in waiting_periods(id_steps, unanswered_claim)),
        key=lambda job: job.since,
    )
    calls = without_overlaps(
        short_claims if short_claims is not None else last_of_each_call(ids), history.holding.get(queue, [])
    )
    waiting_jobs, index = WaitingJobs(), 0
    for step in sorted(calls, key=began):
        while index < len(waiting) and waiting[index].since < step.began:
            waiting_jobs.add(waiting[index])
            index += 1
        first = waiting_jobs.first(step)
        yield step, None
        if first is not None and (short_claims is not None or first.position < position_of(step)):
            yield step, first.claim


def without_overlaps(claims: list[RecordedStep], others: list[RecordedStep]) -> list[RecordedStep]:
    """Return the claims that overlap none of the other calls."""
    spans = [(other.began, inf if other.ended is None else other.ended) for other in others]
    return [
        claim
        for claim in claims
        if not any(began <= ended(claim) and end >= claim.began for began, end in spans)
    ]


class WaitingJobs:
    """The jobs that certainly wait, in claim order; jobs that are not due yet are kept separately."""

    def __init__(self) -> None:
        self._later: list[tuple[int, int, WaitingJob]] = []
        self._due: list[tuple[ClaimPosition, int, WaitingJob]] = []
        self._number = 0

    def add(self, job: WaitingJob) -> None:
        self._number += 1
        heappush(self._later, (job.claim.run_at, self._number, job))

    def first(self, step: RecordedStep) -> WaitingJob | None:
        """Return the first job that waited and was due during the whole claim, or None."""
        while self._later and self._later[0][0] <= step.now:
            _, number, job = heappop(self._later)
            heappush(self._due, (job.position, number, job))
        passed, found = [], None
        while self._due and found is None:
            entry = heappop(self._due)
            if entry[2].claim.began > step.began:
                passed.append(entry)
                if entry[2].claim.began > ended(step) and entry[2].claim.run_at <= step.now:
                    found = entry[2]
        for entry in passed:
            heappush(self._due, entry)
        return found


def waiting_periods(id_steps: IdSteps, unanswered_claim: float) -> Iterator[WaitingJob]:
    """Yield the periods in which the id certainly waited, each up to the claim that ended it.

    A period begins at the answer of the last call that may have moved the job.
    """
    if id_steps.uncertain or any(step.unknown for step in (*id_steps.settles, *id_steps.others)):
        return
    changes = sorted((*id_steps.enqueues, *id_steps.settles, *id_steps.others), key=began)
    index, since = 0, -inf
    previous: RecordedRun | None = None
    for run in id_steps.runs:
        claim = run.claim
        while index < len(changes) and changes[index].began <= ended(claim):
            since = max(since, ended(changes[index]))
            index += 1
        known = previous is None or is_closed_for_sure(previous, ended(claim))
        if known and seq_of(claim) and -inf < since < claim.began < unanswered_claim:
            yield WaitingJob(claim, since)
        previous = run


def is_closed_for_sure(run: RecordedRun, until: int) -> bool:
    """Return whether a settlement or a reap certainly closed the run by `until`.

    A drop does not show which jobs it released or when. A repeated settlement shows an end long after it
    happened.
    """
    ways = [closed_as(step) for began, step in run.closing_steps if began <= until]
    return bool(ways) and all(ways)


def seq_of(claim: RecordedStep) -> int:
    """Return the seq; 0 if the history does not contain it, as in an event log."""
    return claim.seq


def last_of_each_call(ids: list[IdSteps]) -> list[RecordedStep]:
    """For each claim, return the job it took that comes last in claim order."""
    calls: dict[tuple[object, ...], RecordedStep] = {}
    for id_steps in ids:
        for claim in filter(seq_of, id_steps.claims):
            key = (claim.client, claim.call) if claim.call else (claim.began, claim.ended, claim.lease)
            if key not in calls or position_of(claim) > position_of(calls[key]):
                calls[key] = claim
    return list(calls.values())


def final_log(history: RecordedHistory, queue: str) -> dict[str, LoggedEntry] | None:
    """Return the log as it was read from its start to its end after the drain, or None."""
    if history.drained is None:
        return None
    found: dict[str, LoggedEntry] = {}
    expected: str | None = None
    pages = [step for step in history.log_reads.get(queue, ()) if step.began > history.drained]
    for page in sorted(pages, key=lambda step: step.began):
        if page.after != expected or page.fell_off:
            return None
        found |= {entry.offset: entry for entry in page.logged}
        expected = page.next
        if not page.logged:
            return found
    return None


class LogReaderRule(HistoryRule):
    name = "R26"
    title = "nothing appears behind a reader"
    section = "3, Events"
    sentence = "Once a reader has received an offset, no event ever appears at or before it."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, reads in history.log_reads.items():
            log = final_log(history, queue)
            if log is None:
                continue
            offsets = sorted(log)
            for read in reads:
                if not read.fell_off and read.next is not None:
                    self.met += 1
                    yield from self._check_read(queue, log, offsets, read)

    def _check_read(
        self, queue: str, log: dict[str, LoggedEntry], offsets: list[str], read: RecordedStep
    ) -> Iterator[Violation]:
        got = {entry.offset for entry in read.logged}
        last = read.next or ""
        for offset in offsets_between(offsets, read.after, last):
            if offset not in got:
                entry = log[offset]
                why = f"the event {entry.kind} of {entry.id!r} appeared at the offset {offset} after a read"
                yield self.violation((queue, entry.id), f"{why} up to {last}", read)
                return


def offsets_between(offsets: list[str], after: str | None, last: str) -> list[str]:
    """Return the sorted offsets after `after`, up to `last`."""
    first = 0 if after is None else bisect_right(offsets, after)
    return offsets[first : bisect_right(offsets, last)]


class LoggedOnceRule(HistoryRule):
    name = "R27"
    title = "each end is logged once"
    section = "3, Events"
    sentence = "The log read after a drain has exactly one event for each acknowledged end of an attempt."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue in history.log_reads:
            log = final_log(history, queue)
            if log is not None:
                yield from self._check_log(history, queue, log)

    def _check_log(
        self, history: RecordedHistory, queue: str, log: dict[str, LoggedEntry]
    ) -> Iterator[Violation]:
        logged = Counter((e.id, e.fence) for e in log.values() if e.kind in ENDINGS and e.fence)
        for id_steps in history.by_queue.get(queue, ()):
            for run in id_steps.runs:
                ends = [step for _, step in run.closing_steps if closed_as(step)]
                times = logged[run.claim.id, run.fence]
                self.met += bool(ends)
                if times > 1 or (ends and not times):
                    why = f"the end of fence {run.fence} has {times} events in the log; expected 1"
                    yield self.violation(id_steps.key, why, run.claim, *ends)


class RunTimesRule(HistoryRule):
    name = "R32"
    title = "runs do not overlap"
    section = "3, Events"
    sentence = "No run of an id begins before the one before it ended, and none ends before it began."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, reads in history.log_reads.items():
            ends = {entry for read in reads for entry in read.logged if entry.fence and entry.kind in ENDINGS}
            latest: dict[str, int] = {}
            for end in sorted(ends, key=lambda entry: entry.fence):
                if end.claimed_at is None or end.finished_at is None:
                    continue
                self.met += 1
                begin = latest.get(end.id, 0)
                if not begin <= end.claimed_at <= end.finished_at:
                    why = f"fence {end.fence} ran from {end.claimed_at} to {end.finished_at}; the run before "
                    yield self.violation((queue, end.id), f"{why}ended at {begin}")
                latest[end.id] = end.finished_at


RULES = (NotEarlyRule, ClaimOrderRule, NothingLeftRule, LogReaderRule, LoggedOnceRule, RunTimesRule)
