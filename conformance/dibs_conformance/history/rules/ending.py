"""Rules of ends: a run ends once, what was acknowledged stands, and what is over never runs again."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from dibs_conformance.history.by_id import History, Life, Run, way_of
from dibs_conformance.history.rules.rule import Rule, Violation, before, ended
from dibs_conformance.history.step import End, Step


class EndsOnce(Rule):
    name = "R7"
    title = "ends once"
    section = "4.3"
    sentence = "A fence is closed in one way: by one kind of end, or by coming back once."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            for run in life.runs:
                yield from self._run(life, run)

    def _run(self, life: Life, run: Run) -> Iterator[Violation]:
        said = [(way, step) for _, step in run.closers if (way := way_of(step))]
        self.met += bool(said)
        ways = {way for way, _ in said}
        backs = [step for way, step in said if way == "back"]
        if len(ways) > 1 or len(backs) > 1:
            told = " and ".join(sorted(ways)) if len(ways) > 1 else "back twice"
            yield self.breach(life.key, f"fence {run.fence} is closed as {told}", *(step for _, step in said))


class OutcomeStands(Rule):
    name = "R18"
    title = "the acknowledged end stands"
    section = "4.3"
    sentence = "An outcome that is read is the end that was acknowledged for its fence, result and all."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            reads = [(step, step.read.outcome) for step in life.reads if step.read and step.read.outcome]
            runs = {run.fence: run for run in life.runs} if reads else {}
            for step, outcome in reads:
                if outcome.fence in runs:
                    yield from self._one(life, runs[outcome.fence], step, outcome)

    def _one(self, life: Life, run: Run, read: Step, outcome: End) -> Iterator[Violation]:
        said = [(way, step) for _, step in run.closers if (way := way_of(step))]
        if not said:
            return
        self.met += 1
        if all(way != outcome.kind for way, _ in said):
            why = f"the outcome of fence {run.fence} reads {outcome.kind}, acknowledged was {said[0][0]}"
            yield self.breach(life.key, why, said[0][1], read)
            return
        results = {
            step.result
            for _, step in run.closers
            if step.op in ("settle", "finish") and step.how == "complete"
        }
        # A log does not tell results.
        if outcome.kind == "completed" and "" not in results and outcome.result not in results:
            why = f"the result of fence {run.fence} reads {outcome.result!r}"
            yield self.breach(life.key, why, said[0][1], read)


class OverIsOver(Rule):
    name = "R20"
    title = "what is over never runs"
    section = "3, cancel"
    sentence = "What was ended, cancelled or forgotten is in no run that is claimed afterwards."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            self.met += sum(map(removes, life.others))
            if life.others and life.claims:
                yield from self._removed(life, history.first_lost_claim(life.key[0]))
            yield from self._ended(life)

    def _removed(self, life: Life, lost_claim: float) -> Iterator[Violation]:
        """An enqueue that was removed before anyone claimed it neither begins nor ends the range of a run."""
        removals = sorted(filter(removes, life.others), key=lambda step: step.began)
        accepted = {step.revision: step for step in life.accepted}
        claimed: dict[int, int] = {}
        for claim in life.claims:
            for revision in (claim.first, claim.revision):
                claimed[revision] = min(claim.began, claimed.get(revision, claim.began))
        for claim in life.claims:
            for revision in {claim.first, claim.revision} & accepted.keys():
                enqueue = accepted[revision]
                index = bisect_right(removals, enqueue.ended or 0, key=lambda step: step.began)
                removal = removals[index] if index < len(removals) else None
                if removal is None or ended(removal) >= min(claimed[revision], lost_claim):
                    continue
                why = f"revision {revision} runs after its {removal.op} was acknowledged"
                yield self.breach(life.key, why, enqueue, removal, claim)

    def _ended(self, life: Life) -> Iterator[Violation]:
        """After the end of a run, no later run begins within its range."""
        last: tuple[Run, Step] | None = None
        for run in life.runs:
            if last is not None and before(last[1], run.claim):
                self.met += 1
                if run.claim.first <= last[0].claim.revision:
                    why = f"revision {run.claim.first} runs again, fence {last[0].fence} had ended it"
                    yield self.breach(life.key, why, last[0].claim, last[1], run.claim)
            end = next((step for _, step in run.closers if way_of(step) not in ("", "back")), None)
            if end is not None and end.ended is not None:
                last = (run, end)


def removes(step: Step) -> bool:
    """Whether the waiting job or the successor, whatever there was, is gone."""
    return (step.op, step.status) in (("forget", "forgotten"), ("cancel", "cancelled"))


class EffectsInOrder(Rule):
    name = "R19"
    title = "effects go by fence"
    section = "4.2"
    sentence = "A resource that checks fences never takes an older one after a newer one."

    def judge(self, history: History) -> Iterator[Violation]:
        taken: dict[tuple[str, str], list[Step]] = defaultdict(list)
        for step in history.effects:
            if step.status == "taken" and step.ended is not None:
                taken[step.queue, step.id].append(step)
        for key, steps in taken.items():
            answered, index, newest = sorted(steps, key=ended), 0, None
            for step in sorted(steps, key=lambda step: step.began):
                while ended(answered[index]) < step.began:
                    if newest is None or answered[index].fence > newest.fence:
                        newest = answered[index]
                    index += 1
                self.met += newest is not None
                if newest is not None and step.fence < newest.fence:
                    yield self.breach(
                        key, f"fence {step.fence} took effect after {newest.fence}", newest, step
                    )


RULES = (EndsOnce, OutcomeStands, EffectsInOrder, OverIsOver)
