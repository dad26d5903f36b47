"""Rules of when a job is taken: not early, the first in line first, and not left lying."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from dibs_conformance.history.by_id import History, Life, Run, way_of
from dibs_conformance.history.rules.accepted import began
from dibs_conformance.history.rules.rule import Rule, Violation, ended
from dibs_conformance.history.step import Step

#: Priority (negated), run_at and seq: the smaller goes first.
Place = tuple[int, int, int]


class NotEarly(Rule):
    name = "R15"
    title = "not early"
    section = "2"
    sentence = "Nothing is claimed before its run_at."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            for claim in life.claims:
                self.met += claim.run_at > 0
                if claim.run_at > claim.now:
                    why = f"it was taken at {claim.now}, {claim.run_at - claim.now} ms before its run_at"
                    yield self.breach(life.key, why, claim)


class InOrder(Rule):
    name = "R12"
    title = "in order"
    section = "2"
    sentence = "A claim passes over no due job that stood before what it took, the whole time it lasted."

    def judge(self, history: History) -> Iterator[Violation]:
        for queue, lives in history.by_queue.items():
            for taken, waiting in passed_over(lives, history.first_lost_claim(queue), None):
                if waiting is None:
                    self.met += 1
                else:
                    why = f"{taken.id!r} was taken before {waiting.id!r}, which stood before it"
                    yield self.breach((queue, taken.id), why, taken, waiting)


class NotLeft(Rule):
    name = "R16"
    title = "nothing due is left"
    section = "3, claim"
    sentence = (
        "A claim that brought less than asked left no job behind that was due the whole time it lasted."
    )

    def judge(self, history: History) -> Iterator[Violation]:
        for queue, lives in history.by_queue.items():
            if bounded(history.settings.get(queue, [])):
                continue
            short = [step for step in history.short.get(queue, ()) if step.status == "short"]
            for step, waiting in passed_over(lives, history.first_lost_claim(queue), short):
                if waiting is None:
                    self.met += 1
                else:
                    why = f"a claim found nothing more, {waiting.id!r} was due"
                    yield self.breach((queue, waiting.id), why, step, waiting)


def bounded(settings: list[Step]) -> bool:
    """Whether a queue was ever told to hold back."""
    return any(step.paused or step.max_active is not None for step in settings)


class Waiting:
    """A job in line: certainly, from when it was put there to when its claim was sent."""

    __slots__ = ("claim", "place", "since")

    def __init__(self, claim: Step, since: float) -> None:
        self.claim, self.since = claim, since
        self.place: Place = place_of(claim)


def place_of(claim: Step) -> Place:
    return (-claim.priority, claim.run_at, claim.seq)


def passed_over(
    lives: list[Life], lost_claim: float, short: list[Step] | None
) -> Iterator[tuple[Step, Step | None]]:
    """Each claim (or each short one), with None; and again with what it passed over, if it did.

    One sweep over the claims in the order they were sent: a job enters the line once it certainly stands
    there and is due, and leaves it when its own claim is sent.
    """
    line = sorted((job for life in lives for job in waits(life, lost_claim)), key=lambda job: job.since)
    calls = short if short is not None else worst_of_each_call(lives)
    entered, index = Line(), 0
    for step in sorted(calls, key=began):
        while index < len(line) and line[index].since < step.began:
            entered.add(line[index])
            index += 1
        first = entered.first(step)
        yield step, None
        if first is not None and (short is not None or first.place < place_of(step)):
            yield step, first.claim


class Line:
    """The jobs that certainly wait, by place; those not due yet apart."""

    def __init__(self) -> None:
        self._later: list[tuple[int, int, Waiting]] = []
        self._due: list[tuple[Place, int, Waiting]] = []
        self._number = 0

    def add(self, job: Waiting) -> None:
        self._number += 1
        heappush(self._later, (job.claim.run_at, self._number, job))

    def first(self, step: Step) -> Waiting | None:
        """The first in line that was there and due the whole time a claim lasted."""
        while self._later and self._later[0][0] <= step.now:
            _, number, job = heappop(self._later)
            heappush(self._due, (job.place, number, job))
        aside, found = [], None
        while self._due and found is None:
            entry = heappop(self._due)
            if entry[2].claim.began > step.began:
                aside.append(entry)
                if entry[2].claim.began > ended(step) and entry[2].claim.run_at <= step.now:
                    found = entry[2]
        for entry in aside:
            heappush(self._due, entry)
        return found


def waits(life: Life, lost_claim: float) -> Iterator[Waiting]:
    """The stretches in which the id certainly waited, each up to the claim that ended it.

    A stretch begins when the last call that may have moved the job was answered.
    """
    if life.unsure or any(step.unknown for step in (*life.settles, *life.others)):
        return
    moves = sorted((*life.enqueues, *life.settles, *life.others), key=began)
    index, since = 0, -inf
    previous: Run | None = None
    for run in life.runs:
        claim = run.claim
        while index < len(moves) and moves[index].began <= ended(claim):
            since = max(since, ended(moves[index]))
            index += 1
        known = previous is None or closed_by_a_move(previous, ended(claim))
        if known and seq_of(claim) and -inf < since < claim.began < lost_claim:
            yield Waiting(claim, since)
        previous = run


def closed_by_a_move(run: Run, until: int) -> bool:
    """Whether it is certain that a settlement or a reap closed the run: all that may have until then tell so.

    A drop does not say which jobs it let go, nor when, and a repeat tells of an end long after it.
    """
    ways = [way_of(step) for began, step in run.closers if began <= until]
    return bool(ways) and all(ways)


def seq_of(claim: Step) -> int:
    """The place in line; 0 where the history does not tell it, as a log does not."""
    return claim.seq


def worst_of_each_call(lives: list[Life]) -> list[Step]:
    """Of the jobs that one claim took, the one that stands last."""
    calls: dict[tuple[object, ...], Step] = {}
    for life in lives:
        for claim in filter(seq_of, life.claims):
            key = (claim.client, claim.call) if claim.call else (claim.began, claim.ended, claim.lease)
            if key not in calls or place_of(claim) > place_of(calls[key]):
                calls[key] = claim
    return list(calls.values())


RULES = (NotEarly, InOrder, NotLeft)
