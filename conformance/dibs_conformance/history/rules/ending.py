"""Rules about ends: a run ends once, its outcome is kept, and an ended job does not run again."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.rule import HistoryRule, Violation, before, ended, fence, newest_before
from dibs_conformance.steps import RecordedOutcome, RecordedStep


class EndsOnceRule(HistoryRule):
    name = "R7"
    title = "ends once"
    section = "4.3"
    sentence = "A fence is closed in one way: with one kind of outcome, or by one return."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            for run in id_steps.runs:
                yield from self._check_run(id_steps, run)

    def _check_run(self, id_steps: IdSteps, run: RecordedRun) -> Iterator[Violation]:
        known = [(end, step) for _, step in run.closing_steps if (end := closed_as(step))]
        self.met += bool(known)
        ends = {end for end, _ in known}
        returns = [step for end, step in known if end == "back"]
        if len(ends) > 1 or len(returns) > 1:
            text = " and ".join(sorted(ends)) if len(ends) > 1 else "back twice"
            yield self.violation(
                id_steps.key, f"fence {run.fence} was closed as {text}", *(step for _, step in known)
            )


class OutcomeStandsRule(HistoryRule):
    name = "R18"
    title = "the acknowledged end stands"
    section = "4.3"
    sentence = "An outcome that is read has the kind and the result acknowledged for its fence."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            reads = [(step, step.read.outcome) for step in id_steps.reads if step.read and step.read.outcome]
            runs = {run.fence: run for run in id_steps.runs} if reads else {}
            for step, outcome in reads:
                if outcome.fence in runs:
                    yield from self._check_outcome(id_steps, runs[outcome.fence], step, outcome)

    def _check_outcome(
        self, id_steps: IdSteps, run: RecordedRun, read: RecordedStep, outcome: RecordedOutcome
    ) -> Iterator[Violation]:
        known = [(end, step) for _, step in run.closing_steps if (end := closed_as(step))]
        if not known:
            return
        self.met += 1
        if all(end != outcome.kind for end, _ in known):
            why = f"the outcome of fence {run.fence} is {outcome.kind}; {known[0][0]} was acknowledged"
            yield self.violation(id_steps.key, why, known[0][1], read)
            return
        results = {
            step.result
            for _, step in run.closing_steps
            if step.op in ("settle", "finish") and step.how == "complete"
        }
        # An event log contains no results.
        if outcome.kind == "completed" and "" not in results and outcome.result not in results:
            why = f"the result of fence {run.fence} is {outcome.result!r}, which was not acknowledged"
            yield self.violation(id_steps.key, why, known[0][1], read)


class NeverRunsAgainRule(HistoryRule):
    name = "R20"
    title = "what is over never runs"
    section = "3, cancel"
    sentence = "No run claimed later contains a job that was ended, cancelled or forgotten."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            self.met += sum(map(removes, id_steps.others))
            if id_steps.others and id_steps.claims:
                yield from self._check_removed(id_steps, history.first_unanswered_claim(id_steps.key[0]))
            yield from self._check_ended(id_steps)

    def _check_removed(self, id_steps: IdSteps, unanswered_claim: float) -> Iterator[Violation]:
        """Yield runs whose range begins or ends at an enqueue that was removed before it was claimed."""
        removals = sorted(filter(removes, id_steps.others), key=lambda step: step.began)
        accepted = {step.revision: step for step in id_steps.accepted}
        claimed: dict[int, int] = {}
        for claim in id_steps.claims:
            for revision in (claim.first, claim.revision):
                claimed[revision] = min(claim.began, claimed.get(revision, claim.began))
        for claim in id_steps.claims:
            for revision in {claim.first, claim.revision} & accepted.keys():
                enqueue = accepted[revision]
                index = bisect_right(removals, enqueue.ended or 0, key=lambda step: step.began)
                removal = removals[index] if index < len(removals) else None
                if removal is None or ended(removal) >= min(claimed[revision], unanswered_claim):
                    continue
                why = f"revision {revision} runs after its {removal.op} was acknowledged"
                yield self.violation(id_steps.key, why, enqueue, removal, claim)

    def _check_ended(self, id_steps: IdSteps) -> Iterator[Violation]:
        """Yield runs that begin within the range of an earlier run that had ended."""
        last: tuple[RecordedRun, RecordedStep] | None = None
        for run in id_steps.runs:
            if last is not None and not id_steps.imported and before(last[1], run.claim):
                self.met += 1
                if run.claim.first <= last[0].claim.revision:
                    why = (
                        f"revision {run.claim.first} runs again, although fence {last[0].fence} had ended it"
                    )
                    yield self.violation(id_steps.key, why, last[0].claim, last[1], run.claim)
            end = next((step for _, step in run.closing_steps if closed_as(step) not in ("", "back")), None)
            if end is not None and end.ended is not None:
                last = (run, end)


def removes(step: RecordedStep) -> bool:
    """Return whether a step certainly removed the waiting job or the successor."""
    return (step.op, step.status) in (("forget", "forgotten"), ("cancel", "cancelled"))


class EffectsRule(HistoryRule):
    name = "R19"
    title = "effects go by fence"
    section = "4.2"
    sentence = "A resource that checks fences never accepts an older fence after a newer one."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        taken: dict[tuple[str, str], list[RecordedStep]] = defaultdict(list)
        for step in history.effects:
            if step.status == "taken" and step.ended is not None:
                taken[step.queue, step.id].append(step)
        for key, steps in taken.items():
            for step, newest in newest_before(steps, steps, fence):
                self.met += newest is not None
                if newest is not None and step.fence < newest.fence:
                    yield self.violation(
                        key, f"fence {step.fence} took effect after {newest.fence}", newest, step
                    )


RULES = (EndsOnceRule, OutcomeStandsRule, EffectsRule, NeverRunsAgainRule)
