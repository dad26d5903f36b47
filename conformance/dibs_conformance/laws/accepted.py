"""Laws about accepted enqueues: they are kept, run with the latest data, and get an outcome."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from dibs.model.job import FAIL_SUFFIX, Job, Origin, Slot
from dibs.model.requests import Complete, Fail, SettleAction
from dibs.model.results import EnqueueResult
from dibs_conformance.laws.id_history import IdHistory, OpenRun
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory, is_accepted
from dibs_conformance.laws.running import claimed_jobs

#: A run: the queue, the id and the fence.
RunKey = tuple[str, str, int]


class AcceptedIsKept(Law):
    name = "accepted jobs are kept"
    section = "4.1"
    sentence = "Every accepted enqueue that has neither ended nor been cancelled is pending."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            for revision in observed.live:
                self.check(
                    is_pending(slot, revision),
                    "{!r}: the enqueue {} is not pending in {}",
                    id,
                    revision,
                    slot,
                )


class BlockedIsKept(Law):
    name = "a blocked job is not lost"
    section = "4.4"
    sentence = "An enqueue during a run is part of the next claimed run."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            observed = history.history_of(call.queue, job.id)
            if observed.updates:
                missed = [r for r in observed.live if not job.first <= r <= job.revision]
                self.check(not missed, "{!r} runs {}..{} without {}", job.id, job.first, job.revision, missed)


class LastUpdateWins(Law):
    name = "the last update wins"
    section = "3, the fold law"
    sentence = "A run carries, byte for byte, the payload of the newest update that replaces."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            expected = history.history_of(call.queue, job.id).next_payload
            if expected is not None:
                self.check(
                    job.data.payload == expected,
                    "{!r} carries {!r}, not {!r}",
                    job.id,
                    job.data.payload,
                    expected,
                )


class OwnOutcome(Law):
    name = "a waiter gets the outcome of its own run"
    section = "1, Done"
    sentence = "An ended enqueue is never pending again, and its outcome is that of its own run."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot, observed in history.seen:
            for revision, end in observed.ended.items():
                self._check_end(id, slot, revision, end)
            self._check_latest_drop(id, slot, observed)

    def _check_end(self, id: str, slot: Slot, revision: int, end: tuple[str, int]) -> None:
        self.check(
            not is_pending(slot, revision), "{!r}: {} ended {} and is pending again", id, revision, end[0]
        )
        outcome = slot.outcome
        if outcome is not None and outcome.first <= revision <= outcome.revision:
            own = (outcome.kind, outcome.fence) == end
            self.check(
                own,
                "{!r}: {} ended as {}, but its outcome is {} with the fence {}",
                id,
                revision,
                end,
                outcome.kind,
                outcome.fence,
            )

    def _check_latest_drop(self, id: str, slot: Slot, observed: IdHistory) -> None:
        """Check that the latest dropped enqueue is reported, as long as the run before it is kept.

        A cancel drops the enqueues that arrived during a run. That run must be active or be the outcome.
        """
        run = slot.current.run if slot.current else None
        there = (run.fence if run else 0, slot.outcome.fence if slot.outcome else 0)
        if observed.dropped and observed.dropped_during in there:
            latest = max(observed.dropped)
            reported = any(first <= latest <= last for first, last in slot.dropped)
            self.check(
                reported,
                "{!r}: {} was cancelled while blocked, and the slot does not report it as dropped",
                id,
                latest,
            )


class RevisionsGrow(Law):
    name = "revisions grow"
    section = "3, revision"
    sentence = "An enqueue's revision is above that of every call of its queue that returned before."

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, int] = {}

    def begin(self) -> None:
        self.newest = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "enqueue":
            return
        fresh = [answer.revision for answer in call.answer if is_accepted(answer)]
        newest = self.newest.get(call.queue, 0)
        for revision in fresh:
            self.check(revision > newest, "revision {} is not above {}", revision, newest)
        self.newest[call.queue] = max([newest, *fresh])


class RequestKeys(Law):
    name = "a request_key acts once"
    section = "3, enqueue"
    sentence = "Within its time, a repeated key changes no job and returns the first result and its id."

    def __init__(self) -> None:
        super().__init__()
        #: The first result of each key, the id of its request, and the end of its time.
        self.first: dict[tuple[str, str], tuple[EnqueueResult, str, int]] = {}
        self.age: dict[str, int] = {}

    def begin(self) -> None:
        self.first, self.age = {}, {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "configure" and call.args["patch"].request_key_age is not UNSET:
            self.age[call.queue] = call.args["patch"].request_key_age
        if call.verb != "enqueue":
            return
        for request, answer in zip(call.args["requests"], call.answer, strict=True):
            if request.request_key is not None:
                self._check_repeat((call.queue, request.request_key), request.job.id, answer, call.now)

    def _check_repeat(self, key: tuple[str, str], id: str, answer: EnqueueResult, now: int) -> None:
        first, first_id, ends = self.first.get(key, (answer, id, 0))
        if now >= ends:
            first_id = "" if answer.status == "absent" else id
            self.first[key] = (answer, first_id, now + self.age.get(key[0], 3_600_000))
            return
        same = [
            getattr(first, name) == getattr(answer, name) for name in ("status", "found", "first", "revision")
        ]
        self.check(answer.repeated and all(same), "request_key {!r} got {}, then {}", key[1], first, answer)
        self.check(
            answer.id == first_id, "request_key {!r} of {!r} is repeated as {!r}", key[1], first_id, answer.id
        )


class FailJobs(Law):
    name = "a failure is handled once"
    section = "3, the fail job"
    sentence = (
        "Under fail_handler, each failure makes one fail job, with the payload byte for byte and its origin; "
        "without it, a failure makes none."
    )

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.handler: dict[str, bool] = {}
        self.failed: dict[RunKey, Job] = {}
        self.unhandled: set[RunKey] = set()
        self.jobs: dict[RunKey, str] = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "configure" and call.args["patch"].fail_handler is not UNSET:
            self.handler[call.queue] = call.args["patch"].fail_handler
        elif call.verb == "settle":
            for settlement, answer in zip(call.args["settlements"], call.answer, strict=True):
                run = history.history_of(call.queue, settlement.id).open
                if run is not None and run.fence == settlement.fence and answer.status == "done":
                    self._add_end(call.queue, run, settlement.action)
        elif call.verb == "finish" and call.answer == "done":
            run = history.history_of(call.queue, call.args["id"]).open
            if run is not None and run.covers(call.args["revision"]):
                self._add_end(call.queue, run, call.args["end"])

    def _add_end(self, queue: str, run: OpenRun, how: SettleAction) -> None:
        if not isinstance(how, Fail):
            return
        key = (queue, run.job.id, run.fence)
        if self.handler.get(queue) and not queue.endswith(FAIL_SUFFIX):
            self.failed[key] = run.job
        else:
            self.unhandled.add(key)

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        if not call.queue.endswith(FAIL_SUFFIX):
            return
        if call.verb == "list":
            self._check_listed([slot.current for _, slot in call.answer])
        for job in claimed_jobs(call):
            self._check_fail_job(job.id, job.origin, job.data.payload)

    def _check_listed(self, jobs: Sequence[Job | None]) -> None:
        """Check a listing of all fail jobs that wait: each failure since the last listing has one."""
        for job in jobs:
            if job is not None and job.origin is not None:
                self._check_fail_job(job.id, job.origin, job.data.payload)
        missing = [key for key in self.failed if key not in self.jobs]
        self.check(not missing, "no fail job has one of the origins {}", missing)

    def _check_fail_job(self, id: str, origin: Origin | None, payload: bytes) -> None:
        self.check(origin is not None, "the fail job {!r} has no origin", id)
        key = (origin.queue, origin.id, origin.fence) if origin else ("", "", 0)
        self.check(key not in self.unhandled, "{} has the fail job {!r} without fail_handler", key, id)
        failed = self.failed.get(key)
        if failed is None or origin is None:
            return
        self.check(payload == failed.data.payload, "the fail job of {} carries {!r}", key, payload)
        self.check(origin.run_at == failed.run_at, "the origin of {} has run_at {}", key, origin.run_at)
        # An amend may have added attributes during the run.
        lost = failed.data.attributes.keys() - origin.attributes.keys()
        self.check(not lost, "the origin of {} lacks the attributes {}", key, lost)
        known = self.jobs.setdefault(key, id)
        self.check(known == id, "{} has the fail jobs {!r}, {!r}", key, known, id)


class ResultsKept(Law):
    name = "results are kept unchanged"
    section = "4.3"
    sentence = "The outcome of a completed run is, byte for byte, the result that was acknowledged."

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[tuple[str, str, int], bytes | None] = {}

    def begin(self) -> None:
        self.results = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "settle":
            for settlement, answer in zip(call.args["settlements"], call.answer, strict=True):
                if isinstance(settlement.action, Complete) and answer.status == "done":
                    key = (call.queue, settlement.id, settlement.fence)
                    self.results.setdefault(key, settlement.action.result)
        elif call.verb == "finish" and call.answer == "done" and isinstance(call.args["end"], Complete):
            run = history.history_of(call.queue, call.args["id"]).open
            if run is not None and run.covers(call.args["revision"]):
                self.results[call.queue, run.job.id, run.fence] = call.args["end"].result

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        for id, slot in call.slots.items():
            outcome = slot.outcome
            if outcome is not None and (key := (call.queue, id, outcome.fence)) in self.results:
                self.check(
                    outcome.result == self.results[key], "{!r} kept the result {!r}", id, outcome.result
                )


def is_pending(slot: Slot, revision: int) -> bool:
    """Return whether the enqueue with this revision is pending, by the definition in contract 1.

    Its revision then lies in the range of the current job or the successor, and in no dropped range.
    """
    live = [job for job in (slot.current, slot.successor) if job is not None]
    covered = any(job.first <= revision <= job.revision for job in live)
    return covered and not any(first <= revision <= last for first, last in slot.dropped)
