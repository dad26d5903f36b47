"""Laws about the memo of a job: it is fenced, it is kept over comebacks, and it belongs to its data."""

from __future__ import annotations

from msgspec import UNSET

from dibs.model.job import FAIL_SUFFIX, Slot
from dibs_conformance.laws.id_history import IdHistory
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory
from dibs_conformance.laws.running import claimed_jobs


class MemoFenced(Law):
    name = "a memo is fenced"
    section = "3, report"
    sentence = "Only the current run may report; a report under any other fence writes nothing."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "report":
            return
        run = history.history_of(call.queue, call.args["id"]).open
        current = run is not None and run.fence == call.args["fence"]
        wanted = "reported" if current else "lost"
        self.check(call.answer == wanted, "a report got the result {}; expected {}", call.answer, wanted)

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "report" or not call.slots:
            return
        id = call.args["id"]
        memo, job = history.history_of(call.queue, id).memo, call.slots[id].current
        if job is not None and memo is not UNSET:
            self.check(job.data.memo == memo, "{!r} has the memo {!r}, not {!r}", id, job.data.memo, memo)


class MemoKept(Law):
    name = "a memo is kept"
    section = "1, the memo"
    sentence = (
        "A run gets the last memo that was accepted for its job, after any comeback and after retry_failed."
    )

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            memo = history.history_of(call.queue, job.id).memo
            if memo is not None and memo is not UNSET:
                self.check(job.data.memo == memo, "{!r} got the memo {!r}, not {!r}", job.id, job, memo)

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            if slot.current is not None and observed.memo:
                found = slot.current.data.memo
                self.check(
                    found == observed.memo, "{!r} has the memo {!r}, not {!r}", id, found, observed.memo
                )
            if observed.kept is not None and observed.kept.memo:
                self._check_failed(id, slot, observed)

    def _check_failed(self, id: str, slot: Slot, observed: IdHistory) -> None:
        """Check that a failed outcome with data has the memo of its job."""
        outcome, kept = slot.outcome, observed.kept
        if outcome is None or kept is None or outcome.fence != kept.fence or outcome.kind != "failed":
            return
        if outcome.data is not None:
            found = outcome.data.memo
            self.check(found == kept.memo, "the outcome of {!r} has the memo {!r}", id, found)


class MemoOfItsData(Law):
    name = "a memo belongs to its data"
    section = "1, the memo"
    sentence = (
        "New data comes without a memo; a successor, a fail job, and an outcome that is not failed have none."
    )

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            # A fail job has no memo before its first run, and its enqueue was not observed.
            fresh = job.attempts == 1 and call.queue.endswith(FAIL_SUFFIX)
            if fresh or history.history_of(call.queue, job.id).memo is None:
                self.check(job.data.memo is None, "{!r} got the memo {!r}", job.id, job.data.memo)

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            job, successor, outcome = slot.current, slot.successor, slot.outcome
            if job is not None and job.data.memo and observed.memo is None:
                self.check(False, "{!r} has the memo {!r}", id, job.data.memo)  # noqa: FBT003
            if successor is not None:
                self.check(successor.data.memo is None, "the successor of {!r} has a memo", id)
            if outcome is not None and outcome.kind != "failed" and outcome.data is not None:
                self.check(outcome.data.memo is None, "the outcome of {!r} has a memo", id)
