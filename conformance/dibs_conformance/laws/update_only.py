"""The laws of update-only requests, `Update(create=False)`: they create no job, and each waiter ends."""

from __future__ import annotations

from dibs.model.job import Job, Outcome
from dibs.model.requests import EnqueueRequest, Update
from dibs.model.results import EnqueueResult
from dibs_conformance.laws.id_history import IdHistory
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory

ENDS = frozenset({"completed", "failed", "cancelled"})


class UpdateOnlyCreatesNothing(Law):
    name = "an update-only request creates nothing"
    section = "3, enqueue"
    sentence = (
        "An update-only request leaves an id without a job unchanged (`absent`, range 0..0), and an end "
        "promotes no list of such requests alone."
    )

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "enqueue":
            return
        for request, answer in zip(call.args["requests"], call.answer, strict=True):
            if not answer.repeated and (is_update_only(request) or answer.status == "absent"):
                self._check_answer(request, answer)

    def _check_answer(self, request: EnqueueRequest, answer: EnqueueResult) -> None:
        allowed = ("absent", "updated", "blocked") if is_update_only(request) else ()
        self.check(answer.status in allowed, "{} got the result {}", request, answer.status)
        if answer.status == "absent":
            unchanged = (answer.found, answer.first, answer.revision) == ("nothing", 0, 0)
            self.check(unchanged, "{!r} is absent, with the result {}", request.job.id, answer)

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            if observed.empty:
                self.check(slot.current is None, "{!r} has a job that no request created: {}", id, slot)
        if call.verb == "enqueue" and call.slots:
            self._check_absent(call)

    def _check_absent(self, call: ObservedCall) -> None:
        statuses: dict[str, set[str]] = {}
        for request, answer in zip(call.args["requests"], call.answer, strict=True):
            statuses.setdefault(request.job.id, set()).add("repeated" if answer.repeated else answer.status)
        for id in (id for id, found in statuses.items() if found == {"absent"}):
            slot = call.slots.get(id)
            made = slot.current if slot is not None else None
            self.check(made is None, "{!r} is absent, and has the job {}", id, made)


def is_update_only(request: EnqueueRequest) -> bool:
    return isinstance(request.on_conflict, Update) and not request.on_conflict.create


class UpdateOnlyEnds(Law):
    name = "the end of an update-only request is told"
    section = "3, the fold law"
    sentence = (
        "If a run ends with update-only requests alone, their revisions are in the range of the outcome, of "
        "the event and of the origin. A cancelled one reads as cancelled."
    )

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            if slot.outcome is not None and (observed.joined or observed.dropped):
                self._check_outcome(id, slot.outcome, slot.dropped, observed)
        if call.verb == "events":
            for _, event in call.answer.events:
                if event.kind in ENDS and event.fence:
                    observed = history.history_of(call.queue, event.id)
                    self._check_range("the event", event.id, event.fence, event, observed)
        elif call.verb == "list":
            for _, slot in call.answer:
                self._check_origin(slot.current, history)

    def _check_outcome(
        self, id: str, outcome: Outcome, dropped: tuple[tuple[int, int], ...], observed: IdHistory
    ) -> None:
        self._check_range("the outcome", id, outcome.fence, outcome, observed)
        if observed.dropped and outcome.fence == observed.dropped_during:
            for revision in observed.dropped:
                hidden = any(first <= revision <= last for first, last in dropped)
                read = outcome.first <= revision <= outcome.revision and not hidden
                self.check(not read, "{!r}: {} was dropped, and reads as {}", id, revision, outcome.kind)

    def _check_origin(self, job: Job | None, history: ObservedHistory) -> None:
        origin = job.origin if job is not None else None
        if origin is not None:
            observed = history.history_of(origin.queue, origin.id)
            newest = max((r for r, fence in observed.joined.items() if fence == origin.fence), default=0)
            self.check(
                origin.revision >= newest, "the origin of {!r} lacks the revision {}", origin.id, newest
            )

    def _check_range(self, part: str, id: str, fence: int, range_: object, observed: IdHistory) -> None:
        first, last = range_.first, range_.revision  # type: ignore[attr-defined]
        for revision, joined in observed.joined.items():
            if joined == fence:
                kept = first <= revision <= last
                self.check(kept, "{!r}: {} has {}..{}, without {}", id, part, first, last, revision)
