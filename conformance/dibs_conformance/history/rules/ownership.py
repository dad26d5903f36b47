"""Rules about ownership: leases, one active run per id, growing fences, and no effect of older fences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from math import inf

from dibs_conformance.history.by_id import END_OF, IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.rule import (
    HistoryRule,
    Violation,
    before,
    began,
    by_answer,
    ended,
    fence,
    newest_before,
)
from dibs_conformance.steps import RecordedStep


class FencesRule(HistoryRule):
    name = "R4"
    title = "fences grow"
    section = "1, Numbers"
    sentence = (
        "The fences of an id are distinct, at least the storage's time in µs, and grow from claim to claim."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            self.met += len(id_steps.claims)
            yield from self._check_distinct(id_steps)
            yield from self._check_growth(id_steps)
            for claim in id_steps.claims:
                if claim.fence < claim.run_began * 1000:
                    yield self.violation(
                        id_steps.key,
                        f"fence {claim.fence} is below the storage's time, {claim.run_began} ms",
                        claim,
                    )

    def _check_distinct(self, id_steps: IdSteps) -> Iterator[Violation]:
        for a, b in pairwise(id_steps.runs):
            if a.fence == b.fence:
                yield self.violation(id_steps.key, f"two claims got the fence {a.fence}", a.claim, b.claim)

    def _check_growth(self, id_steps: IdSteps) -> Iterator[Violation]:
        for claim, newest in newest_before(id_steps.claims, id_steps.claims, fence):
            if newest is not None and claim.fence < newest.fence:
                why = f"fence {claim.fence} was given after {newest.fence}"
                yield self.violation(id_steps.key, why, newest, claim)


class OneActiveRule(HistoryRule):
    name = "R5"
    title = "one active run"
    section = "4.2"
    sentence = "An id is claimed again only after its earlier run may have been closed."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            for a, b in pairwise(id_steps.runs):
                self.met += 1
                if a.earliest_close() > ended(b.claim):
                    yield self.violation(
                        id_steps.key, f"fence {b.fence} was given while {a.fence} ran", a.claim, b.claim
                    )
                else:
                    yield from self._check_times(id_steps, a, b)

    def _check_times(self, id_steps: IdSteps, a: RecordedRun, b: RecordedRun) -> Iterator[Violation]:
        """Compare the storage's own times, where an answer contains them."""
        dated = [step for _, step in a.closing_steps if step.now and closed_as(step)]
        if b.claim.now and dated and b.claim.run_began < min(step.now for step in dated):
            why = f"fence {b.fence} was given at {b.claim.run_began}; {a.fence} was closed at {dated[0].now}"
            yield self.violation(id_steps.key, why, a.claim, dated[0], b.claim)


class StaleFenceRule(HistoryRule):
    name = "R6"
    title = "a late holder is refused"
    section = "4.2"
    sentence = "Once a newer fence is known, an older fence has no effect, except to repeat its own end."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            if len(id_steps.runs) > 1:
                yield from self._check_late(id_steps)

    def _check_late(self, id_steps: IdSteps) -> Iterator[Violation]:
        runs = {run.fence: run for run in id_steps.runs}
        for step, newest in newest_before(id_steps.settles, id_steps.claims, fence):
            if newest is None or step.fence >= newest.fence:
                continue
            self.met += 1
            if step.status in SUCCESS and not may_repeat(runs.get(step.fence), step):
                why = f"fence {step.fence} was answered {step.status} after {newest.fence} was given"
                yield self.violation(id_steps.key, why, newest, step)


def may_repeat(run: RecordedRun | None, step: RecordedStep) -> bool:
    """Return whether the answer of `step` may repeat an end that an earlier step made.

    Return True if the run is not in the history.
    """
    closing_steps = run.closing_steps if run else ()
    return run is None or any(
        other is not step and began <= step.began and makes_same_end(other, step)
        for began, other in closing_steps
    )


SUCCESS = frozenset({"done", "returned", "handed_off", "cancelled"})


def makes_same_end(earlier: RecordedStep, step: RecordedStep) -> bool:
    """Return whether `earlier` may have made the end that the answer of `step` repeats."""
    end = "cancelled" if step.status == "cancelled" else END_OF.get(step.how, "")
    if step.status in ("returned", "handed_off") or not end:
        return False
    if earlier.op in ("drop", "reap", "forget", "cancel"):
        return end == "cancelled" and earlier.status in ("cancelled", "unknown", "dropped")
    earlier_end = END_OF.get(earlier.how, "")
    # A return after a requested cancellation ends the run as cancelled.
    return earlier_end == end or (end == "cancelled" and not earlier_end)


class HolderAcceptedRule(HistoryRule):
    name = "R8"
    title = "the holder is heard"
    section = "3, settle"
    sentence = "The holder of a run that no call can have closed is never answered lost."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            lost = [step for step in id_steps.settles if step.status == "lost"]
            if lost:
                runs = {run.fence: run for run in id_steps.runs}
                for step in lost:
                    yield from self._check_lost(id_steps, runs.get(step.fence), step)

    def _check_lost(
        self, id_steps: IdSteps, run: RecordedRun | None, step: RecordedStep
    ) -> Iterator[Violation]:
        if run is None or not before(run.claim, step):
            return
        self.met += 1
        if run.earliest_close(excluding=step) > ended(step) and run is id_steps.runs[-1]:
            yield self.violation(
                id_steps.key, f"fence {step.fence} was answered lost while it was active", run.claim, step
            )


class LeasesRule(HistoryRule):
    name = "R17"
    title = "leases hold"
    section = "3, Leases"
    sentence = "A renewal never shortens or revives a lease; a lease is lost early only if it was dropped."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for lease, steps in history.leases.items():
            queues: dict[str, list[RecordedStep]] = defaultdict(list)
            for step in steps:
                queues[step.queue].append(step)
            # The grant of a lease on several queues returns only the earliest of their ends.
            exact = len({step.queue for step in steps if step.op == "grant"}) < 2
            for queue, answered in queues.items():
                yield from self._check_queue(queue, lease, answered, exact=exact)
        yield from self._check_claims(history)

    def _check_queue(
        self, queue: str, lease: str, steps: list[RecordedStep], *, exact: bool
    ) -> Iterator[Violation]:
        """Compare each renewal with the latest end announced before it was sent."""
        answered, index = by_answer(step for step in steps if step.until), 0
        latest: RecordedStep | None = None
        dropped = min((step.began for step in steps if step.op == "drop"), default=inf)
        dead = min((ended(s) for s in steps if s.status == "lost"), default=inf)
        for step, alone in renewals(steps):
            while index < len(answered) and ended(answered[index]) < step.began:
                latest = answered[index] if latest is None or answered[index].until > latest.until else latest
                index += 1
            self.met += 1
            if step.status == "alive" and dead < step.began:
                yield self.violation(
                    (queue, ""), f"the lease {lease[:8]} was lost and became alive again", step
                )
            elif step.status == "alive" and latest is not None:
                is_exact = alone and (exact or latest.op != "grant")
                yield from self._check_alive(queue, latest, step, alone=is_exact)
            elif step.status == "lost" and latest is not None and step.now < latest.until:
                yield from self._check_lost(queue, latest, step, dropped)

    def _check_alive(
        self, queue: str, latest: RecordedStep, step: RecordedStep, *, alone: bool
    ) -> Iterator[Violation]:
        if step.until < latest.until:
            why = f"a renewal shortened the lease from {latest.until} to {step.until}"
            yield self.violation((queue, ""), why, latest, step)
        elif alone and step.now >= latest.until:
            why = f"the lease ended at {latest.until} and was renewed at {step.now}"
            yield self.violation((queue, ""), why, latest, step)

    def _check_lost(
        self, queue: str, latest: RecordedStep, step: RecordedStep, dropped: float
    ) -> Iterator[Violation]:
        if dropped > ended(step):
            why = f"the lease was lost at {step.now}, before its end at {latest.until}"
            yield self.violation((queue, ""), why, latest, step)

    def _check_claims(self, history: RecordedHistory) -> Iterator[Violation]:
        """Yield claims under a lease that had been answered lost."""
        dead: dict[tuple[str, str], RecordedStep] = {}
        for lease, steps in history.leases.items():
            for step in by_answer(step for step in steps if step.status in ("lost", "dropped")):
                dead.setdefault((step.queue, lease), step)
        for id_steps in history.ids.values() if dead else ():
            for claim in id_steps.claims:
                death = dead.get((claim.queue, claim.lease))
                if death is not None and before(death, claim):
                    why = f"the job was claimed under the dead lease {claim.lease[:8]}"
                    yield self.violation(id_steps.key, why, death, claim)


def renewals(steps: list[RecordedStep]) -> Iterator[tuple[RecordedStep, bool]]:
    """Yield (renewal, alone) for the answered renewals in the order they were sent.

    `alone` is True if no other renewal overlapped this one. Without overlap, the latest
    announced end is the end of the lease. With overlap, another renewal may have changed it.
    """
    sent = sorted((step for step in steps if step.op == "renew"), key=began)
    latest = -inf
    for step, following in zip_longest(sent, sent[1:]):
        if step.ended is None:
            latest = inf
            continue
        yield step, latest < step.began and (following is None or following.began > step.ended)
        latest = max(latest, step.ended)


RULES = (FencesRule, OneActiveRule, StaleFenceRule, HolderAcceptedRule, LeasesRule)
