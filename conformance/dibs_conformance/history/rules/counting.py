"""Rules of what is counted: attempts, comebacks, and the states at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dibs_conformance.history.by_id import History, Life, Run, way_of
from dibs_conformance.history.rules.rule import Rule, Violation
from dibs_conformance.history.step import Read, Step


class AttemptsCount(Rule):
    name = "R10"
    title = "attempts are counted"
    section = "3, claim"
    sentence = (
        "A fresh job runs as attempt 1, one that came back as the next attempt, one that was released as "
        "the same again; comebacks are never more than the claims before."
    )

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            sure = not history.partial and history.first_lost_claim(life.key[0]) > last_answer(life)
            if life.runs and sure:
                yield from self._first(life, life.runs[0])
                yield from self._next(life)
            yield from self._comebacks(life)

    def _first(self, life: Life, run: Run) -> Iterator[Violation]:
        self.met += 1
        if run.claim.attempt != 1:
            yield self.breach(life.key, f"the first claim is attempt {run.claim.attempt}", run.claim)

    def _next(self, life: Life) -> Iterator[Violation]:
        for a, b in pairwise(life.runs):
            may = self._may_follow(a)
            self.met += may is not None
            if may is not None and b.claim.attempt not in may:
                why = f"attempt {b.claim.attempt} follows attempt {a.claim.attempt}; it may be {sorted(may)}"
                yield self.breach(life.key, why, a.claim, *(step for _, step in a.closers), b.claim)

    def _may_follow(self, run: Run) -> set[int] | None:
        """The attempts that may be next; None when nobody knows how the run was closed."""
        told = [step for _, step in run.closers if not step.unknown]
        if len(told) != len(run.closers) or not told:
            return None
        return {1} | {n for step in told for n in after(step, run.claim.attempt)}

    def _comebacks(self, life: Life) -> Iterator[Violation]:
        for run in life.runs:
            claim = run.claim
            if claim.retries + claim.stalls + claim.timeouts >= max(claim.attempt, 1):
                why = f"attempt {claim.attempt} after {claim.retries} retries, {claim.stalls} stalls"
                yield self.breach(life.key, f"{why} and {claim.timeouts} timeouts", claim)


def after(step: Step, attempt: int) -> tuple[int, ...]:
    """The attempts that may follow when this step closed the run; 1 is always possible, by a reset."""
    if way_of(step) not in ("", "back"):
        return (1,)
    released = step.how == "release" or step.status == "released" or step.op == "drop"
    if released:
        return (attempt,)
    return (attempt, attempt + 1) if way_of(step) == "" else (attempt + 1,)


def last_answer(life: Life) -> float:
    return max((step.ended or 0 for step in life.claims), default=0)


class CountsAtRest(Rule):
    name = "R13"
    title = "counts are true at rest"
    section = "3, count"
    sentence = "After a drain, what a queue counts is what a read of all its ids finds."

    def judge(self, history: History) -> Iterator[Violation]:
        drained = history.drained
        for step in history.counts if drained is not None else ():
            if (
                step.counts is None
                or drained is None
                or step.began <= drained
                or step.counts.get("approximate")
            ):
                continue
            self.met += 1
            found = found_in(history, step.queue, drained)
            wrong = {name: n for name, n in found.items() if step.counts.get(name, 0) != n}
            if wrong:
                told = ", ".join(
                    f"{step.counts.get(name, 0)} {name}, {n} were read" for name, n in wrong.items()
                )
                yield self.breach((step.queue, ""), f"counted {told}", step)


def found_in(history: History, queue: str, since: int) -> Counter[str]:
    """How many ids were read in each live state."""
    found = Counter(waiting=0, active=0, blocked=0)
    for life in history.by_queue.get(queue, ()):
        late = [step.read for step in life.reads if step.began > since and step.read is not None]
        if late:
            found.update(states_of(late[-1]))
    return found


def states_of(read: Read) -> Iterator[str]:
    if read.current is not None:
        yield "active" if read.fence else "waiting"
    if read.successor is not None:
        yield "blocked"


RULES = (AttemptsCount, CountsAtRest)
