"""Laws about Release: it leaves no count, and with a time the job waits until that time, at the back."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from dibs.model.job import Job
from dibs.model.requests import Complete, Fail, Release
from dibs_conformance.laws.id_history import LaterEnqueue
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory


@frozen
class Released:
    """A run that a settlement released, and the job that waits after it."""

    action: Release
    before: Job
    after: Job
    later: list[LaterEnqueue]


def released_runs(call: ObservedCall, history: ObservedHistory) -> Iterator[Released]:
    """Yield the releases of a call, without those whose job another settlement of the call may change."""
    if call.verb != "settle" or not call.slots:
        return
    settlements = call.args["settlements"]
    answered = zip(settlements, call.answer, strict=True)
    actions = {(one.id, one.fence): one.action for one, answer in answered if answer.status == "returned"}
    changed = {
        (item.queue, item.job.id)
        for one in settlements
        for item in (one.action.then if isinstance(one.action, Complete | Fail) else ())
    }
    for closed in history.closed:
        id = closed.run.job.id
        action, waiting = actions.get((id, closed.run.fence)), call.slots[id].current
        known = closed.kind is None and closed.later is not None and (call.queue, id) not in changed
        if isinstance(action, Release) and known and waiting is not None and closed.later is not None:
            yield Released(action, closed.run.job, waiting, closed.later)


class ReleaseLeavesNoCount(Law):
    name = "a release leaves no count"
    section = "3, settle"
    sentence = "After a Release, attempts are as before the claim, and no other count has changed."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for one in released_runs(call, history):
            old = one.before
            expected = (old.attempts - 1, old.retries, old.stalls, old.timeouts)
            if any(enqueued.resets for enqueued in one.later):
                expected = (0, 0, 0, 0)
            new = (one.after.attempts, one.after.retries, one.after.stalls, one.after.timeouts)
            self.check(new == expected, "{!r} has the counts {}; expected {}", old.id, new, expected)


class TimedReleaseWaits(Law):
    name = "a release waits as told"
    section = "3, settle"
    sentence = (
        "A Release with a time waits until that time, with a fresh seq; without a time it keeps its run_at "
        "and its seq."
    )

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for one in released_runs(call, history):
            timed = one.action.run_at is not None or one.action.delay is not None
            moved = one.after.seq > one.before.seq if timed else one.after.seq == one.before.seq
            self.check(moved, "{!r} had the seq {}, and has {}", one.after.id, one.before.seq, one.after.seq)
            if not one.later:
                at = self._expected_time(one, call.now)
                self.check(one.after.run_at == at, "{!r} waits until {}, not {}", one.after.id, one.after, at)

    @staticmethod
    def _expected_time(one: Released, now: int) -> int:
        if one.action.run_at is not None:
            return one.action.run_at
        return one.before.run_at if one.action.delay is None else now + one.action.delay
