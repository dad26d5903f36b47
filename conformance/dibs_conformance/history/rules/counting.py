"""Rules about counters: attempts, returns, and the counts of a queue at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.rule import HistoryRule, Violation
from dibs_conformance.steps import RecordedSlot, RecordedStep


class AttemptsRule(HistoryRule):
    name = "R10"
    title = "attempts are counted"
    section = "3, claim"
    sentence = (
        "A new job runs as attempt 1, a returned job as the next attempt, a released job as the same "
        "attempt; returns never outnumber the claims before."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            is_complete = not history.partial and history.first_unanswered_claim(
                id_steps.key[0]
            ) > last_answer(id_steps)
            if id_steps.runs and is_complete:
                yield from self._check_first(id_steps, id_steps.runs[0])
                yield from self._check_next(id_steps)
            yield from self._check_returns(id_steps)

    def _check_first(self, id_steps: IdSteps, run: RecordedRun) -> Iterator[Violation]:
        self.met += 1
        if run.claim.attempt != 1:
            yield self.violation(id_steps.key, f"the first claim is attempt {run.claim.attempt}", run.claim)

    def _check_next(self, id_steps: IdSteps) -> Iterator[Violation]:
        for a, b in pairwise(id_steps.runs):
            allowed = self._next_attempts(a)
            self.met += allowed is not None
            if allowed is not None and b.claim.attempt not in allowed:
                why = (
                    f"attempt {b.claim.attempt} follows attempt {a.claim.attempt}; expected {sorted(allowed)}"
                )
                yield self.violation(
                    id_steps.key, why, a.claim, *(step for _, step in a.closing_steps), b.claim
                )

    def _next_attempts(self, run: RecordedRun) -> set[int] | None:
        """Return the possible attempt numbers of the next run.

        Return None if the history does not show how this run was closed.
        """
        known = [step for _, step in run.closing_steps if not step.unknown]
        if len(known) != len(run.closing_steps) or not known:
            return None
        return {1} | {n for step in known for n in attempts_after(step, run.claim.attempt)}

    def _check_returns(self, id_steps: IdSteps) -> Iterator[Violation]:
        for run in id_steps.runs:
            claim = run.claim
            if claim.retries + claim.stalls + claim.timeouts >= max(claim.attempt, 1):
                why = f"attempt {claim.attempt} after {claim.retries} retries, {claim.stalls} stalls"
                yield self.violation(id_steps.key, f"{why} and {claim.timeouts} timeouts", claim)


def attempts_after(step: RecordedStep, attempt: int) -> tuple[int, ...]:
    """Return the possible attempt numbers after this step closed the run. A reset makes 1 possible, too."""
    if closed_as(step) not in ("", "back"):
        return (1,)
    released = step.how == "release" or step.status == "released" or step.op == "drop"
    if released:
        return (attempt,)
    return (attempt, attempt + 1) if closed_as(step) == "" else (attempt + 1,)


def last_answer(id_steps: IdSteps) -> float:
    return max((step.ended or 0 for step in id_steps.claims), default=0)


class CountsRule(HistoryRule):
    name = "R13"
    title = "counts are true at rest"
    section = "3, count"
    sentence = "After a drain, the counts of a queue equal the states found by reading all its ids."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
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
            found = count_states_read(history, step.queue, drained)
            wrong = {name: n for name, n in found.items() if step.counts.get(name, 0) != n}
            if wrong:
                known = ", ".join(
                    f"{step.counts.get(name, 0)} {name}, but {n} were read" for name, n in wrong.items()
                )
                yield self.violation((step.queue, ""), f"counted {known}", step)


def count_states_read(history: RecordedHistory, queue: str, since: int) -> Counter[str]:
    """Return the number of ids read in each live state."""
    found = Counter(waiting=0, active=0, blocked=0)
    for id_steps in history.by_queue.get(queue, ()):
        late = [step.read for step in id_steps.reads if step.began > since and step.read is not None]
        if late:
            found.update(states_of(late[-1]))
    return found


def states_of(read: RecordedSlot) -> Iterator[str]:
    if read.current is not None:
        yield "active" if read.fence else "waiting"
    if read.successor is not None:
        yield "blocked"


RULES = (AttemptsRule, CountsRule)
