"""Laws about keys and limits (contract 2, Keys and limits): `per_key`, `rate` and `key_rate` of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dibs.model.job import Job
from dibs.model.requests import StartRate
from dibs.model.results import ClaimResult
from dibs_conformance.laws.admission import Admission, most_starts
from dibs_conformance.laws.law import Law
from dibs_conformance.laws.observed import ObservedCall, ObservedHistory
from dibs_conformance.laws.running import claimed_jobs


class PerKeyExact(Law):
    name = "per_key is exact"
    section = "2, Keys and limits"
    sentence = "After a claim, no key of its jobs has more than per_key active runs under leases."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        most = history.limits_of(call.queue).settings.per_key
        keys = {job.data.key for job in claimed_jobs(call)} - {None}
        if most is None or not keys:
            return
        runs = Counter(run.job.data.key for run in history.open_runs(call.queue) if run.lease is not None)
        for key in keys:
            self.check(runs[key] <= most, "the key {!r} has {} runs, but per_key is {}", key, runs[key], most)


class RateExact(Law):
    name = "a rate is exact"
    section = "2, Keys and limits"
    sentence = "Since a rate was set, each stretch of w µs holds at most burst + w div interval starts."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        jobs = claimed_jobs(call)
        limits = history.limits_of(call.queue)
        if jobs and limits.settings.rate is not None:
            self._check_starts("the queue", limits.settings.rate, limits.queue_starts, len(jobs))
        if limits.settings.key_rate is None:
            return
        for key, count in Counter(job.data.key for job in jobs).items():
            if key is not None:
                starts = limits.key_starts[key]
                self._check_starts(f"the key {key!r}", limits.settings.key_rate, starts, count)

    def _check_starts(self, name: str, rate: StartRate, starts: Sequence[int], count: int) -> None:
        """Check each stretch from an earlier start to one of the newest `count` starts."""
        for last in range(len(starts) - count, len(starts)):
            for first in range(last + 1):
                ms, found = starts[last] - starts[first], last - first + 1
                most = most_starts(rate, ms)
                self.check(
                    found <= most, "{} had {} starts in {} ms; {} allows {}", name, found, ms, rate, most
                )


class AdmittedTaken(Law):
    name = "the admitted are taken, in order"
    section = "2, Keys and limits"
    sentence = (
        "A claim that took fewer than its limit leaves no admitted job, and a job that it passed over was "
        "not admitted at its turn."
    )

    def before(self, call: ObservedCall, history: ObservedHistory) -> None:
        limits = history.limits_of(call.queue)
        unlimited = not limits.settings.has_limits or limits.settings.paused
        if call.verb != "claim" or unlimited or call.answer.lost or not call.slots:
            return
        answer: ClaimResult = call.answer
        held = [run.job for run in history.open_runs(call.queue) if run.lease is not None]
        admission, taken = Admission(limits, held), {job.id for job in answer.jobs}
        left = len(answer.jobs)
        for job in sorted([*answer.jobs, *waiting_jobs(call)], key=claim_order):
            if job.id in taken:
                admission.take(job.data.key, answer.now)
                left -= 1
            elif left or (len(answer.jobs) < call.args["limit"] and admission.has_headroom):
                self.check(
                    not admission.admits(job, answer.now),
                    "a claim passed over {!r}, which was admitted",
                    job.id,
                )


class NextDueNotLate(Law):
    name = "next_due is never late"
    section = "2, Keys and limits"
    sentence = "next_due is later than now, and not later than the time at which time alone admits a job."

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        answer = call.answer
        if not isinstance(answer, ClaimResult) or answer.lost:
            return
        if answer.next_due is not None:
            self.check(
                answer.next_due > answer.now, "next_due {} is not after now, {}", answer.next_due, answer.now
            )
        admission = admission_after(call, history)
        if not call.slots or admission.settings.paused or not admission.has_headroom:
            return
        opens = admission.next_opening(waiting_jobs(call), answer.now)
        if opens is not None:
            known = answer.next_due is not None and answer.next_due <= opens
            self.check(known, "next_due is {}, but a job is admitted at {}", answer.next_due, opens)


class RoomWakes(Law):
    name = "room wakes"
    section = "2, Keys and limits"
    sentence = (
        "After a claim that left no admitted job, none is admitted as long as the token of the claim stands "
        "and its next_due is not reached."
    )

    def after(self, call: ObservedCall, history: ObservedHistory) -> None:
        if call.verb != "wait":
            return
        admission = admission_after(call, history)
        admitted = [job.id for job in waiting_jobs(call) if admission.admits(job, call.now)]
        self.check(
            call.answer.woken or not admitted,
            "{} became admitted after a claim, whose token still stands and whose next_due is {}",
            admitted,
            call.args["next_due"],
        )


def admission_after(call: ObservedCall, history: ObservedHistory) -> Admission:
    """Return the admission of the queue after a call. `history` includes the call."""
    held = (run.job for run in history.open_runs(call.queue) if run.lease is not None)
    return Admission(history.limits_of(call.queue), held)


def waiting_jobs(call: ObservedCall) -> Iterator[Job]:
    """Yield the waiting jobs of the slots that were read after a call."""
    for slot in call.slots.values():
        if slot.current is not None and slot.current.run is None:
            yield slot.current


def claim_order(job: Job) -> tuple[int, int, int]:
    return -job.data.priority, job.run_at, job.seq


#: The laws of the capability `limits`.
LIMIT_LAWS: tuple[type[Law], ...] = (PerKeyExact, RateExact, AdmittedTaken, NextDueNotLate, RoomWakes)
