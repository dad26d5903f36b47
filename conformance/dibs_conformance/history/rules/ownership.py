"""Rules of who holds an id: one at a time, by growing fences, and nobody else's word counts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dibs_conformance.history.by_id import END_OF, History, Life, Run, way_of
from dibs_conformance.history.rules.rule import Rule, Violation, before, by_answer, ended
from dibs_conformance.history.step import Step


class FencesGrow(Rule):
    name = "R4"
    title = "fences grow"
    section = "3, fence"
    sentence = (
        "The fences of an id differ, are at least the storage's time in µs, and grow from claim to claim."
    )

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            self.met += len(life.claims)
            yield from self._differ(life)
            yield from self._grow(life)
            for claim in life.claims:
                if claim.fence < claim.now * 1000:
                    yield self.breach(
                        life.key, f"fence {claim.fence} is below the time, {claim.now} ms", claim
                    )

    def _differ(self, life: Life) -> Iterator[Violation]:
        for a, b in pairwise(life.runs):
            if a.fence == b.fence:
                yield self.breach(life.key, f"two claims got the fence {a.fence}", a.claim, b.claim)

    def _grow(self, life: Life) -> Iterator[Violation]:
        answered, index, newest = by_answer(life.claims), 0, None
        for claim in sorted(life.claims, key=lambda step: step.began):
            while index < len(answered) and ended(answered[index]) < claim.began:
                if newest is None or answered[index].fence > newest.fence:
                    newest = answered[index]
                index += 1
            if newest is not None and claim.fence < newest.fence:
                why = f"fence {claim.fence} came after {newest.fence}"
                yield self.breach(life.key, why, newest, claim)


class OneActive(Rule):
    name = "R5"
    title = "one active run"
    section = "4.2"
    sentence = "An id is claimed again only when its earlier run may have been closed."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            for a, b in pairwise(life.runs):
                self.met += 1
                if a.closable() > ended(b.claim):
                    yield self.breach(
                        life.key, f"fence {b.fence} was given while {a.fence} ran", a.claim, b.claim
                    )
                else:
                    yield from self._overlap(life, a, b)

    def _overlap(self, life: Life, a: Run, b: Run) -> Iterator[Violation]:
        """By the storage's own time, where an end tells it."""
        told = [step for _, step in a.closers if step.now and way_of(step)]
        if b.claim.now and told and b.claim.now < min(step.now for step in told):
            why = f"fence {b.fence} was given at {b.claim.now}, {a.fence} was closed at {told[0].now}"
            yield self.breach(life.key, why, a.claim, told[0], b.claim)


class StaleIsRefused(Rule):
    name = "R6"
    title = "a late holder is refused"
    section = "4.2"
    sentence = "Once a newer fence is known, the older one changes nothing; it may only repeat its own end."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            if len(life.runs) > 1:
                yield from self._late(life)

    def _late(self, life: Life) -> Iterator[Violation]:
        claims, index, newest = by_answer(life.claims), 0, None
        runs = {run.fence: run for run in life.runs}
        for step in sorted(life.settles, key=lambda step: step.began):
            while index < len(claims) and ended(claims[index]) < step.began:
                if newest is None or claims[index].fence > newest.fence:
                    newest = claims[index]
                index += 1
            if newest is None or step.fence >= newest.fence:
                continue
            self.met += 1
            if step.status in TAKEN and not repeats(runs.get(step.fence), step):
                why = f"fence {step.fence} was answered {step.status} after {newest.fence} was given"
                yield self.breach(life.key, why, newest, step)


def repeats(run: Run | None, step: Step) -> bool:
    """Whether an earlier step may have made the end which this one's answer tells; unknown runs: yes."""
    closers = run.closers if run else ()
    return run is None or any(
        other is not step and began <= step.began and same_end(other, step) for began, other in closers
    )


TAKEN = frozenset({"done", "returned", "handed_off", "cancelled"})


def same_end(earlier: Step, step: Step) -> bool:
    """Whether the first may have made the end which the answer to the second repeats."""
    wanted = "cancelled" if step.status == "cancelled" else END_OF.get(step.how, "")
    if step.status in ("returned", "handed_off") or not wanted:
        return False
    if earlier.op in ("drop", "reap", "forget", "cancel"):
        return wanted == "cancelled" and earlier.status in ("cancelled", "unknown", "dropped")
    made = END_OF.get(earlier.how, "")
    # A return whose cancellation was asked for is an end as cancelled.
    return made == wanted or (wanted == "cancelled" and not made)


class NoFalseRefusal(Rule):
    name = "R8"
    title = "the holder is heard"
    section = "3, settle"
    sentence = "The holder of a run that nothing can have closed is never answered lost."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            lost = [step for step in life.settles if step.status == "lost"]
            if lost:
                runs = {run.fence: run for run in life.runs}
                for step in lost:
                    yield from self._lost(life, runs.get(step.fence), step)

    def _lost(self, life: Life, run: Run | None, step: Step) -> Iterator[Violation]:
        if run is None or not before(run.claim, step):
            return
        self.met += 1
        if run.closable(but=step) > ended(step) and run is life.runs[-1]:
            yield self.breach(life.key, f"fence {step.fence} was refused while it ran", run.claim, step)


RULES = (FencesGrow, OneActive, StaleIsRefused, NoFalseRefusal)
