"""Rules about reading while others work: the log, listings and exports."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from attrs import define, field, frozen

from dibs_conformance.history.by_id import RecordedHistory, closed_as
from dibs_conformance.history.from_log import ENDINGS
from dibs_conformance.history.rules.order import waiting_periods
from dibs_conformance.history.rules.rule import HistoryRule, Violation, ended
from dibs_conformance.steps import LoggedEntry, RecordedStep


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


@frozen
class Period:
    """The time from `since` to `until`, in which an id was certainly in a state."""

    id: str
    state: str
    since: float
    until: float
    #: The claim that ended the period of a waiting job, or that began the run.
    claim: RecordedStep


@define
class Reading:
    """A listing or an export by one client, from its first page to its last, read as a whole or in parts."""

    #: The `split` that returned the cursors of the parts, if there was one, and then the pages.
    steps: list[RecordedStep] = field(factory=list)
    ids: Counter[str] = field(factory=Counter)

    @property
    def began(self) -> int:
        return self.steps[0].began

    @property
    def ended(self) -> int:
        return ended(self.steps[-1])


class ReadingRule(HistoryRule):
    name = "R28"
    title = "a reading shows what was there"
    section = "3, Queues as a whole"
    sentence = (
        "An id that was in the state, or existed, during a whole listing, export, or split export is in it "
        "once."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, pages in history.pages.items():
            by_state = periods_by_state(history, queue)
            for state in ("waiting", "active", ""):
                readings = [r for r in readings_of(pages) if r.steps[-1].how == state]
                yield from self._check_readings(queue, readings, by_state[state])

    def _check_readings(
        self, queue: str, readings: list[Reading], periods: list[Period]
    ) -> Iterator[Violation]:
        """Sweep over the readings in the order they began."""
        coming = iter(sorted(periods, key=lambda period: period.since))
        following = next(coming, None)
        open_periods: list[Period] = []
        for reading in sorted(readings, key=lambda reading: reading.began):
            while following is not None and following.since < reading.began:
                open_periods.append(following)
                following = next(coming, None)
            open_periods = [period for period in open_periods if period.until > reading.began]
            for period in open_periods:
                if period.until > reading.ended:
                    self.met += 1
                    times = reading.ids[period.id]
                    if times != 1:
                        why = f"the id appears {times} times in a reading"
                        yield self.violation((queue, period.id), why, period.claim, *reading.steps)


def periods_by_state(history: RecordedHistory, queue: str) -> dict[str, list[Period]]:
    """Return the periods for each state. Those of the empty state are for exports: the id existed."""
    found: dict[str, list[Period]] = defaultdict(list)
    for id_steps in history.by_queue.get(queue, ()):
        for job in waiting_periods(id_steps, history.first_unanswered_claim(queue)):
            found["waiting"].append(Period(job.claim.id, "waiting", job.since, job.claim.began, job.claim))
        for run in id_steps.runs:
            period = Period(run.claim.id, "active", ended(run.claim), run.earliest_close(), run.claim)
            if not run.handed_off:
                found["active"].append(period)
    found[""] = [*found["waiting"], *found["active"]]
    return found


def readings_of(pages: Iterable[RecordedStep]) -> Iterator[Reading]:
    """Yield the complete readings: pages of one client that follow each other, from no cursor to none."""
    by_client: dict[str, list[RecordedStep]] = defaultdict(list)
    for page in pages:
        by_client[page.client].append(page)
    for steps in by_client.values():
        reading = Reading()
        for step in sorted(steps, key=lambda step: step.began):
            if step.op == "split":
                reading = Reading([step])
                continue
            if step.after is None and [one.op for one in reading.steps] != ["split"]:
                reading = Reading()
            if step.ended is None or not follows(reading, step):
                reading = Reading()
                continue
            reading.steps.append(step)
            reading.ids.update(step.ids)
            if cursor_behind(step) is None:
                yield reading
                reading = Reading()


def follows(reading: Reading, page: RecordedStep) -> bool:
    """Return whether a page continues a reading."""
    if not reading.steps or reading.steps[-1].op == "split":
        return page.after is None
    last = reading.steps[-1]
    return (last.op, last.how, cursor_behind(last)) == (page.op, page.how, page.after)


def cursor_behind(page: RecordedStep) -> str | None:
    """Return the cursor at which the next page of the reading begins, or None after the last page."""
    return page.upto if page.next is None else page.next


RULES = (LogReaderRule, LoggedOnceRule, RunTimesRule, ReadingRule)
