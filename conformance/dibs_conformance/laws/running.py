"""Laws about claims and ends: which jobs are claimed, when, in which order, and how often a run ends."""

from __future__ import annotations

from msgspec import UNSET

from dibs.model.job import Job
from dibs.model.requests import Release, RetryLater
from dibs.model.results import ClaimResult
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory, end_kind


class OneActiveRun(Law):
    name = "one active run"
    section = "4.2"
    sentence = "An id is not claimed while its earlier run is open."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            observed = history.history_of(call.queue, job.id)
            if observed.newest_fence:
                self.check(
                    observed.open is None,
                    "{!r} was claimed while fence {} runs",
                    job.id,
                    observed.newest_fence,
                )
        ids = [job.id for job in claimed_jobs(call)]
        if len(ids) > 1:
            self.check(len(ids) == len(set(ids)), "one claim handed out an id twice: {}", ids)


class FencesGrow(Law):
    name = "fences grow"
    section = "3, fence"
    sentence = "A fence is at least now in µs and above every earlier one of its id, also after forget."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            newest, fence = history.history_of(call.queue, job.id).newest_fence, fence_of(job)
            self.check(
                fence >= call.answer.now * 1000, "fence {} is below now, {} ms", fence, call.answer.now
            )
            self.check(fence > newest, "fence {} of {!r} is not above {}", fence, job.id, newest)


class ClaimsInOrder(Law):
    name = "claims follow the order"
    section = "2"
    sentence = "A claim hands out by priority descending, run_at ascending, seq ascending."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        order = [(-job.data.priority, job.run_at, job.seq) for job in claimed_jobs(call)]
        if len(order) > 1:
            self.check(
                order == sorted(order), "jobs were claimed in the order (-priority, run_at, seq) = {}", order
            )


class NotEarly(Law):
    name = "no claim before run_at"
    section = "2"
    sentence = "A job is not claimed before its run_at."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        for job in claimed_jobs(call):
            self.check(
                job.run_at <= call.answer.now, "{!r} ran {} ms early", job.id, job.run_at - call.answer.now
            )


class PausedQueue(Law):
    name = "a paused queue hands out no job"
    section = "3, claim"
    sentence = "A claim in a paused queue returns no job."

    def __init__(self) -> None:
        super().__init__()
        self.paused: dict[str, bool] = {}

    def begin(self) -> None:
        self.paused = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "configure" and call.args["patch"].paused is not UNSET:
            self.paused[call.queue] = call.args["patch"].paused
        elif call.verb == "claim" and self.paused.get(call.queue):
            self.check(not call.answer.jobs, "a paused queue handed out jobs")


class MaxActiveLimit(Law):
    name = "max_active is exact"
    section = "3, claim"
    sentence = "A queue has at most max_active jobs under leases."

    def __init__(self) -> None:
        super().__init__()
        self.most: dict[str, int | None] = {}

    def begin(self) -> None:
        self.most = {}

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "configure" and call.args["patch"].max_active is not UNSET:
            self.most[call.queue] = call.args["patch"].max_active
        most = self.most.get(call.queue)
        if call.verb == "claim" and most is not None and (call.answer.jobs or most == 0):
            held = [run for run in history.open_runs(call.queue) if run.lease is not None]
            kept = len(held) <= most or not call.answer.jobs
            self.check(kept, "{} jobs are active under leases, but max_active is {}", len(held), most)


class OneEnd(Law):
    name = "a run ends once"
    section = "4.3"
    sentence = "After the end of a run, only the same end is answered done, and the run does not return."

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[tuple[str, str, int], str] = {}

    def begin(self) -> None:
        self.ends = {}

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "settle":
            return
        for settlement, answer in zip(call.args["settlements"], call.answer, strict=True):
            key = (call.queue, settlement.id, settlement.fence)
            kind = end_kind(settlement.action)
            if key in self.ends:
                again = answer.status == "done" and kind == self.ends[key]
                ended = answer.status == "cancelled" and kind is None and self.ends[key] == "cancelled"
                lost = answer.status == "lost"
                self.check(
                    again or ended or lost,
                    "{} got the result {}, although the run had ended as {}",
                    settlement,
                    answer.status,
                    self.ends[key],
                )
            elif answer.status == "done" and kind is not None:
                self.ends[key] = kind
            elif answer.status == "cancelled":
                self.ends[key] = "cancelled"


class LateHolderRefused(Law):
    name = "a late holder is refused"
    section = "4.2"
    sentence = "A fence older than the newest one of its id cannot end the run."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "settle":
            return
        for settlement, answer in zip(call.args["settlements"], call.answer, strict=True):
            observed = history.history_of(call.queue, settlement.id)
            if settlement.fence < observed.newest_fence:
                returned = answer.status in ("returned", "handed_off", "refused")
                self.check(
                    not returned,
                    "{} got the result {}, although the newest fence of the id is {}",
                    settlement,
                    answer.status,
                    observed.newest_fence,
                )


class CancelRequestedEnds(Law):
    name = "a run being cancelled does not return"
    section = "3, settle"
    sentence = "A run whose cancellation was requested ends; it does not return and is not handed off."

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb == "settle":
            first = {
                s.id: (s, a) for s, a in reversed([*zip(call.args["settlements"], call.answer, strict=True)])
            }
            for settlement, answer in first.values():
                run = history.history_of(call.queue, settlement.id).open
                asked = run is not None and run.cancel_requested and run.fence == settlement.fence
                if asked and isinstance(settlement.action, RetryLater | Release):
                    self.check(
                        answer.status == "cancelled",
                        "{} got the result {}; expected cancelled",
                        settlement,
                        answer.status,
                    )
        elif call.verb == "reap":
            for one in call.answer:
                run = history.history_of(call.queue, one.id).open
                if run is not None and run.cancel_requested:
                    self.check(
                        one.kind == "cancelled",
                        "reap returned {!r} as {}; expected cancelled",
                        one.id,
                        one.kind,
                    )


def claimed_jobs(call: ObservedCall) -> tuple[Job, ...]:
    answer = call.answer
    return answer.jobs if isinstance(answer, ClaimResult) else ()


def fence_of(job: Job) -> int:
    return job.run.fence if job.run is not None else 0
