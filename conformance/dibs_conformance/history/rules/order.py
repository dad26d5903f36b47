"""Rules of when a job is taken: not early, the first in line first, and not left lying."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.accepted import began
from dibs_conformance.history.rules.rule import Rule, Violation, ended
from dibs_conformance.history.step import Step

#: Priority (negated), run_at and seq: the smaller goes first.
ClaimPosition = tuple[int, int, int]


class NotEarlyRule(Rule):
    name = "R15"
    title = "not early"
    section = "2"
    sentence = "Nothing is claimed before its run_at."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            for claim in id_steps.claims:
                self.met += claim.run_at > 0
                if claim.run_at > claim.now:
                    why = f"it was taken at {claim.now}, {claim.run_at - claim.now} ms before its run_at"
                    yield self.violation(id_steps.key, why, claim)


class ClaimOrderRule(Rule):
    name = "R12"
    title = "in order"
    section = "2"
    sentence = "A claim passes over no due job that stood before what it took, the whole time it lasted."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, ids in history.by_queue.items():
            for taken, job in passed_over(ids, history.first_unanswered_claim(queue), None):
                if job is None:
                    self.met += 1
                else:
                    why = f"{taken.id!r} was taken before {job.id!r}, which stood before it"
                    yield self.violation((queue, taken.id), why, taken, job)


class NothingLeftRule(Rule):
    name = "R16"
    title = "nothing due is left"
    section = "3, claim"
    sentence = (
        "A claim that brought less than asked left no job behind that was due the whole time it lasted."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, ids in history.by_queue.items():
            if is_limited(history.settings.get(queue, [])):
                continue
            short_claims = [step for step in history.short_claims.get(queue, ()) if step.status == "short"]
            for step, job in passed_over(ids, history.first_unanswered_claim(queue), short_claims):
                if job is None:
                    self.met += 1
                else:
                    why = f"a claim found nothing more, {job.id!r} was due"
                    yield self.violation((queue, job.id), why, step, job)


def is_limited(settings: list[Step]) -> bool:
    """Whether a queue was ever told to hold back."""
    return any(step.paused or step.max_active is not None for step in settings)


class WaitingJob:
    """A job in line: certainly, from when it was put there to when its claim was sent."""

    __slots__ = ("claim", "position", "since")

    def __init__(self, claim: Step, since: float) -> None:
        self.claim, self.since = claim, since
        self.position: ClaimPosition = position_of(claim)


def position_of(claim: Step) -> ClaimPosition:
    return (-claim.priority, claim.run_at, claim.seq)


def passed_over(
    ids: list[IdSteps], unanswered_claim: float, short_claims: list[Step] | None
) -> Iterator[tuple[Step, Step | None]]:
    """Each claim (or each short one), with None; and again with what it passed over, if it did.

    One sweep over the claims in the order they were sent: a job enters the line once it certainly stands
    there and is due, and leaves it when its own claim is sent.
    """
    waiting = sorted(
        (job for id_steps in ids for job in waiting_periods(id_steps, unanswered_claim)),
        key=lambda job: job.since,
    )
    calls = short_claims if short_claims is not None else last_of_each_call(ids)
    waiting_jobs, index = WaitingJobs(), 0
    for step in sorted(calls, key=began):
        while index < len(waiting) and waiting[index].since < step.began:
            waiting_jobs.add(waiting[index])
            index += 1
        first = waiting_jobs.first(step)
        yield step, None
        if first is not None and (short_claims is not None or first.position < position_of(step)):
            yield step, first.claim


class WaitingJobs:
    """The jobs that certainly wait, by place; those not due yet apart."""

    def __init__(self) -> None:
        self._later: list[tuple[int, int, WaitingJob]] = []
        self._due: list[tuple[ClaimPosition, int, WaitingJob]] = []
        self._number = 0

    def add(self, job: WaitingJob) -> None:
        self._number += 1
        heappush(self._later, (job.claim.run_at, self._number, job))

    def first(self, step: Step) -> WaitingJob | None:
        """The first in line that was there and due the whole time a claim lasted."""
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
    """The stretches in which the id certainly waited, each up to the claim that ended it.

    A stretch begins when the last call that may have moved the job was answered.
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
    """Whether it is certain that a settlement or a reap closed the run: all that may have until then tell so.

    A drop does not say which jobs it let go, nor when, and a repeat tells of an end long after it.
    """
    ways = [closed_as(step) for began, step in run.closing_steps if began <= until]
    return bool(ways) and all(ways)


def seq_of(claim: Step) -> int:
    """The place in line; 0 where the history does not tell it, as a log does not."""
    return claim.seq


def last_of_each_call(ids: list[IdSteps]) -> list[Step]:
    """Of the jobs that one claim took, the one that stands last."""
    calls: dict[tuple[object, ...], Step] = {}
    for id_steps in ids:
        for claim in filter(seq_of, id_steps.claims):
            key = (claim.client, claim.call) if claim.call else (claim.began, claim.ended, claim.lease)
            if key not in calls or position_of(claim) > position_of(calls[key]):
                calls[key] = claim
    return list(calls.values())


RULES = (NotEarlyRule, ClaimOrderRule, NothingLeftRule)
