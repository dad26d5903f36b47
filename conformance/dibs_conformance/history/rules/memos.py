"""The rule about memos: a run gets only a memo that an earlier run of its id stored, and the last one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.rule import HistoryRule, Violation, before, ended, fence, newest_before
from dibs_conformance.steps import NO_MEMO, RecordedStep


class MemoRule(HistoryRule):
    name = "R29"
    title = "a memo is fenced and kept"
    section = "1, the memo"
    sentence = (
        "A run gets only a memo that an earlier run of its id may have stored, and after a comeback without "
        "new data the last one; a report under an older fence is answered lost."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            yield from self._check_late(id_steps)
            if not history.partial and not id_steps.imported:
                for run in id_steps.runs:
                    yield from self._check_source(id_steps, run)
                for a, b in pairwise(id_steps.runs):
                    yield from self._check_kept(id_steps, a, b)

    def _check_late(self, id_steps: IdSteps) -> Iterator[Violation]:
        """Yield reports that were accepted although a newer fence was known when they were sent."""
        for step, newest in newest_before(id_steps.reports, id_steps.claims, fence):
            if newest is None or step.fence >= newest.fence:
                continue
            self.met += 1
            if step.status == "reported":
                why = f"a report under fence {step.fence} was accepted after {newest.fence} was given"
                yield self.violation(id_steps.key, why, newest, step)

    def _check_source(self, id_steps: IdSteps, run: RecordedRun) -> Iterator[Violation]:
        if run.claim.memo in ("", NO_MEMO):
            return
        self.met += 1
        sources = [step for step in id_steps.reports if step.memo == run.claim.memo and step.status != "lost"]
        if not any(step.fence < run.fence and step.began <= ended(run.claim) for step in sources):
            why = f"fence {run.fence} got the memo {run.claim.memo!r}, which no earlier run stored"
            yield self.violation(id_steps.key, why, run.claim)

    def _check_kept(self, id_steps: IdSteps, a: RecordedRun, b: RecordedRun) -> Iterator[Violation]:
        """Yield a run without the memo of the run before it, if that run certainly came back unchanged."""
        reports = [step for step in id_steps.reports if step.fence == a.fence and step.memo]
        certain = all(step.status == "reported" and came_before_closing(a, step) for step in reports)
        if not b.claim.memo or not reports or not certain or not came_back(a, b):
            return
        if has_new_data(id_steps, a, b):
            return
        last = max(reports, key=lambda step: step.began)
        if all(before(step, last) for step in reports if step is not last):
            self.met += 1
            if b.claim.memo != last.memo:
                why = (
                    f"fence {b.fence} got the memo {b.claim.memo!r}; fence {a.fence} had stored {last.memo!r}"
                )
                yield self.violation(id_steps.key, why, last, b.claim)


def came_before_closing(run: RecordedRun, report: RecordedStep) -> bool:
    return ended(report) < run.earliest_close()


def came_back(a: RecordedRun, b: RecordedRun) -> bool:
    """Return whether run `a` certainly came back, and the job of `b` is the same one."""
    ways = {closed_as(step) for _, step in a.closing_steps}
    return ways == {"back"} and a.claim.first == b.claim.first


def has_new_data(id_steps: IdSteps, a: RecordedRun, b: RecordedRun) -> bool:
    """Return whether an enqueue, a forget or a retry_failed may have replaced the data between two runs."""
    changes = [step for step in id_steps.enqueues if step.replaces]
    changes += [step for step in id_steps.others if step.op in ("forget", "retry_failed")]
    changes += [step for step in id_steps.uncertain if step not in changes]
    return any(
        step.began <= ended(b.claim) and (step.ended is None or step.ended >= a.claim.began)
        for step in changes
    )


RULES = (MemoRule,)
