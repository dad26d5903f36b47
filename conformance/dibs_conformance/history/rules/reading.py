"""Rules about the log of a queue, as readers got it while others worked."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator

from dibs_conformance.history.by_id import RecordedHistory, closed_as
from dibs_conformance.history.from_log import ENDINGS
from dibs_conformance.history.rules.rule import HistoryRule, Violation
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


RULES = (LogReaderRule, LoggedOnceRule, RunTimesRule)
