"""Rules about accepted enqueues: they are kept, run with the right payload, and have growing revisions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import inf
from operator import itemgetter

from dibs_conformance.history.by_id import IdSteps, RecordedHistory, RecordedRun, closed_as
from dibs_conformance.history.rules.rule import HistoryRule, Violation, before, began, ended, newest_before
from dibs_conformance.steps import UNKNOWN, RecordedSlot, RecordedStep


class KeptRule(HistoryRule):
    name = "R1"
    title = "accepted is kept"
    section = "4.1"
    sentence = "An accepted enqueue is pending when it is read, unless a call may have ended or removed it."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            read = max((s for s in id_steps.reads if s.ended is not None), key=began, default=None)
            if read is not None and read.read is not None:
                yield from self._check_read(id_steps, read, read.read)

    def _check_read(self, id_steps: IdSteps, read: RecordedStep, slot: RecordedSlot) -> Iterator[Violation]:
        removals, ended_ranges = Removals(id_steps), EndedRanges(id_steps)
        for step in (*id_steps.creating, *(s for s in id_steps.imported if not s.unknown)):
            if not before(step, read):
                continue
            self.met += 1
            is_kept = pending(slot, step.revision) or in_outcome(slot, step.revision)
            if (
                not is_kept
                and not ended_ranges.covers(step.revision)
                and not removals.may_have_removed(step, ended(read))
            ):
                yield self.violation(
                    id_steps.key, f"the accepted enqueue {step.revision} is missing", step, read
                )


class DrainedRule(HistoryRule):
    name = "R2"
    title = "everything ends"
    section = "4.3"
    sentence = "After a healthy worker has drained the queues, no job is waiting, active or blocked."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values() if history.drained is not None else ():
            for step in id_steps.reads:
                if step.read is not None and history.drained is not None and step.began > history.drained:
                    self.met += 1
                    if step.read.current or step.read.successor:
                        yield self.violation(id_steps.key, "the job is still live after the drain", step)


class PayloadRule(HistoryRule):
    name = "R3"
    title = "a run is what was asked for"
    section = "3, The fold law"
    sentence = "A run carries exactly the payload of the newest replacing update in its range."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            if not history.partial:
                candidates = PayloadCandidates(id_steps)
                for run in id_steps.runs:
                    if run.claim.origin is None:
                        yield from self._check_run(id_steps, run, candidates)

    def _check_run(
        self, id_steps: IdSteps, run: RecordedRun, candidates: PayloadCandidates
    ) -> Iterator[Violation]:
        claim = run.claim
        if not candidates.earliest <= ended(claim):
            self.met += 1
            yield self.violation(id_steps.key, "the job runs, but it was never enqueued", claim)
            return
        if not claim.payload:
            return
        self.met += 1
        allowed = candidates.may_carry(run) if candidates.uncertain_from > ended(claim) else []
        if allowed and all(claim.payload != step.payload for step in allowed):
            why = f"the run carries {claim.payload!r}; the newest update has {allowed[-1].payload!r}"
            yield self.violation(id_steps.key, why, allowed[-1], claim)
        elif claim.payload not in candidates.payloads:
            yield self.violation(
                id_steps.key, f"the run carries {claim.payload!r}, which was never enqueued", claim
            )


#: The payload rule skips a run if more of its updates may have been dropped by a cancel.
MAX_DROPPED = 100


class PayloadCandidates:
    """The enqueues of an id that its runs may carry, and the time from which they are uncertain."""

    def __init__(self, id_steps: IdSteps) -> None:
        self._replacing = sorted(
            (step for step in id_steps.accepted if step.replaces or step.status == "queued"),
            key=revision,
        )
        self._accepted = sorted(id_steps.creating, key=revision)
        self._removals = Removals(id_steps)
        uncertain = id_steps.uncertain
        amends = [step for step in id_steps.others_of("amend") if step.payload]
        changes = [*amends, *id_steps.others_of("retry_failed"), *id_steps.imported]
        sources = [*id_steps.accepted, *uncertain, *amends, *id_steps.imported]
        self.payloads = {step.payload for step in sources}
        self.earliest = min((step.began for step in (*sources, *changes)), default=inf)
        uncertain_times = [
            step.began for step in (*uncertain, *changes) if step.status not in ("refused", "not_found")
        ]
        self.uncertain_from = min(uncertain_times, default=inf)

    def may_carry(self, run: RecordedRun) -> list[RecordedStep]:
        """Return the updates whose payload the run may carry, newest first; [] if there are too many.

        These are the newest replacing update in its range, and older ones while a cancel may have dropped the
        newer. If no update replaces, it is the first enqueue in the range.
        """
        (first, last), until = run.range, ended(run.claim)
        found: list[RecordedStep] = []
        for index in range(bisect_right(self._replacing, last, key=revision) - 1, -1, -1):
            step = self._replacing[index]
            if step.revision < first:
                break
            found.append(step)
            if not self._removals.may_have_removed(step, until):
                return found
            if len(found) > MAX_DROPPED:
                return []
        oldest = bisect_left(self._accepted, first, key=revision)
        return [*found, *(step for step in self._accepted[oldest : oldest + 1] if step.revision <= last)]


class NothingSkippedRule(HistoryRule):
    name = "R21"
    title = "blocked is not dropped"
    section = "4.4"
    sentence = "An enqueue accepted before a claim is in the claimed run, unless a call ended or removed it."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for id_steps in history.ids.values():
            # The revision of an imported job may be below those of earlier enqueues.
            if len(id_steps.creating) > 1 and id_steps.runs and not id_steps.imported:
                removals = Removals(id_steps)
                yield from self._check_skipped(id_steps, removals)
                yield from self._check_left_behind(id_steps, removals)

    def _check_skipped(self, id_steps: IdSteps, removals: Removals) -> Iterator[Violation]:
        """Yield enqueues before the range of a run that no earlier run contained."""
        accepted = sorted(id_steps.creating, key=revision)
        index, covered_to = 0, 0
        for run in id_steps.runs:
            while index < len(accepted) and accepted[index].revision < run.claim.first:
                step = accepted[index]
                index += 1
                self.met += 1
                if step.revision > covered_to and not removals.may_have_removed(step, ended(run.claim)):
                    why = f"revision {step.revision} is in no run; the next run begins at {run.claim.first}"
                    yield self.violation(id_steps.key, why, step, run.claim)
            covered_to = max(covered_to, run.claim.revision)

    def _check_left_behind(self, id_steps: IdSteps, removals: Removals) -> Iterator[Violation]:
        """Yield enqueues after the range of a run that were answered before its claim was sent."""
        for claim, newest in newest_before(id_steps.claims, id_steps.creating, revision):
            self.met += newest is not None
            if newest is None or newest.revision <= claim.revision:
                continue
            if not removals.may_have_removed(newest, ended(claim)):
                why = f"the run ends at revision {claim.revision}, but {newest.revision} was accepted before"
                yield self.violation(id_steps.key, why, newest, claim)


class RevisionsRule(HistoryRule):
    name = "R11"
    title = "revisions grow"
    section = "1, Numbers"
    sentence = "Each enqueue gets a higher revision than all enqueues of its queue answered before."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, ids in history.by_queue.items():
            accepted = [step for id_steps in ids for step in id_steps.accepted]
            for step, newest in newest_before(accepted, accepted, revision):
                self.met += newest is not None
                if newest is not None and step.revision <= newest.revision:
                    why = f"revision {step.revision} was given after {newest.revision}"
                    yield self.violation((queue, step.id), why, newest, step)
            for id_steps in ids:
                yield from self._check_distinct(id_steps)

    def _check_distinct(self, id_steps: IdSteps) -> Iterator[Violation]:
        for a, b in pairwise(sorted(id_steps.accepted, key=revision)):
            if a.revision == b.revision:
                yield self.violation(id_steps.key, f"two enqueues got the revision {a.revision}", a, b)


class RequestKeyRule(HistoryRule):
    name = "R9"
    title = "a request_key acts once"
    section = "3, enqueue"
    sentence = "Among enqueues with the same unexpired key, one takes effect; the others repeat its answer."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for queue, ids in history.by_queue.items():
            keyed: dict[str, list[RecordedStep]] = defaultdict(list)
            for id_steps in ids:
                for step in id_steps.enqueues:
                    if step.key and step.status not in (UNKNOWN, "refused"):
                        keyed[step.key].append(step)
            for key, steps in keyed.items():
                yield from self._check_key(queue, key, steps)

    def _check_key(self, queue: str, key: str, steps: list[RecordedStep]) -> Iterator[Violation]:
        self.met += len(steps) > 1
        if len({(step.status, step.first, step.revision) for step in steps}) > 1:
            yield self.violation(
                (queue, steps[0].id), f"enqueues with the key {key!r} took effect twice", *steps
            )


def pending(slot: RecordedSlot, revision: int) -> bool:
    """Return whether a revision is in the range of the current or the successor, and not dropped."""
    live = [range_ for range_ in (slot.current, slot.successor) if range_ is not None]
    covered = any(first <= revision <= last for first, last in live)
    return covered and not any(first <= revision <= last for first, last in slot.dropped)


def in_outcome(slot: RecordedSlot, revision: int) -> bool:
    return slot.outcome is not None and slot.outcome.first <= revision <= slot.outcome.revision


def revision(step: RecordedStep) -> int:
    return step.revision


#: Answers of a cancel or a forget that may have removed an enqueue.
REMOVING = frozenset({"cancelled", "requested", "forgotten", UNKNOWN})


class Removals:
    """The cancels and forgets of an id that may have removed enqueues."""

    def __init__(self, id_steps: IdSteps) -> None:
        steps = [s for s in id_steps.others if s.op in ("cancel", "forget") and s.status in REMOVING]
        steps.sort(key=answered_at)
        self._answer_times = [answered_at(step) for step in steps]
        #: Element i is the earliest time at which one of the steps from i on was sent.
        self._earliest_sent = [*accumulate((float(step.began) for step in reversed(steps)), min)][::-1]

    def may_have_removed(self, step: RecordedStep, until: float) -> bool:
        """Return whether a removal was answered after `step` was sent, and was itself sent by `until`."""
        index = bisect_right(self._answer_times, step.began)
        return index < len(self._earliest_sent) and self._earliest_sent[index] <= until


def answered_at(step: RecordedStep) -> float:
    return inf if step.ended is None else step.ended


class EndedRanges:
    """The ranges of the runs that may have ended with an outcome.

    They overlap after an import: the revision of an imported job may be below those of earlier runs.
    """

    def __init__(self, id_steps: IdSteps) -> None:
        ended_ranges = (
            run.range for run in id_steps.runs if any(may_end(step) for _, step in run.closing_steps)
        )
        ranges = sorted(ended_ranges, key=itemgetter(1))
        self._lasts = [last for _, last in ranges]
        #: Element i is the lowest first revision of the ranges from i on.
        self._lowest_firsts = [*accumulate((first for first, _ in reversed(ranges)), min)][::-1]

    def covers(self, revision: int) -> bool:
        index = bisect_left(self._lasts, revision)
        return index < len(self._lasts) and self._lowest_firsts[index] <= revision


def may_end(step: RecordedStep) -> bool:
    """Return whether a step may have ended its run with an outcome."""
    return closed_as(step) not in ("", "back") or step.unknown or step.op == "finish"


RULES = (KeptRule, DrainedRule, PayloadRule, RequestKeyRule, RevisionsRule, NothingSkippedRule)
