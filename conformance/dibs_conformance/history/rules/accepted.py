"""Rules of what was accepted: it is kept, it runs as last told, and it is numbered in the order it came."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import inf
from operator import itemgetter

from dibs_conformance.history.by_id import History, Life, Run, way_of
from dibs_conformance.history.rules.rule import Rule, Violation, before, by_answer, ended
from dibs_conformance.history.step import UNKNOWN, Read, Step


class Kept(Rule):
    name = "R1"
    title = "accepted is kept"
    section = "4.1"
    sentence = "Every accepted enqueue is read as pending, unless something may have ended or removed it."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            read = max((s for s in life.reads if s.ended is not None), key=began, default=None)
            if read is not None and read.read is not None:
                yield from self._one(life, read, read.read)

    def _one(self, life: Life, read: Step, seen: Read) -> Iterator[Violation]:
        removals, over = Removals(life), Ended(life)
        for step in life.accepted:
            if not before(step, read):
                continue
            self.met += 1
            told = pending(seen, step.revision) or in_outcome(seen, step.revision)
            if not told and not over.covers(step.revision) and not removals.may_have(step, ended(read)):
                yield self.breach(life.key, f"the enqueue {step.revision} is gone", step, read)


class Drained(Rule):
    name = "R2"
    title = "everything ends"
    section = "4.3"
    sentence = "After a drain by a healthy worker nothing is waiting, active or blocked."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values() if history.drained is not None else ():
            for step in life.reads:
                if step.read is not None and history.drained is not None and step.began > history.drained:
                    self.met += 1
                    if step.read.current or step.read.successor:
                        yield self.breach(life.key, "it is still live after the drain", step)


class Submitted(Rule):
    name = "R3"
    title = "a run is what was asked for"
    section = "3, the fold law"
    sentence = "A run carries the payload of the newest update in its range that replaces, byte for byte."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            if not history.partial:
                loose = Loose(life)
                for run in life.runs:
                    if run.claim.origin is None:
                        yield from self._one(life, run, loose)

    def _one(self, life: Life, run: Run, loose: Loose) -> Iterator[Violation]:
        claim = run.claim
        if not loose.earliest <= ended(claim):
            self.met += 1
            yield self.breach(life.key, "it runs, and was never enqueued", claim)
            return
        if not claim.payload:
            return
        self.met += 1
        may = loose.may_carry(run) if loose.loose_from > ended(claim) else []
        if may and all(claim.payload != step.payload for step in may):
            why = f"it carries {claim.payload!r}, the newest update in it {may[-1].payload!r}"
            yield self.breach(life.key, why, may[-1], claim)
        elif claim.payload not in loose.payloads:
            yield self.breach(life.key, f"it carries {claim.payload!r}, which nobody enqueued", claim)


#: Updates in one run that a cancel may have dropped: beyond so many, the rule does not say.
MOST_DROPPED = 100


class Loose:
    """The enqueues of an id as runs may carry them, and from when on it is no longer certain."""

    def __init__(self, life: Life) -> None:
        self._replacing = sorted(
            (step for step in life.accepted if step.replaces or step.status == "queued"),
            key=revision,
        )
        self._accepted = sorted(life.accepted, key=revision)
        self._removals = Removals(life)
        unsure = life.unsure
        amends = [step for step in life.of("amend") if step.payload]
        changes = [*amends, *life.of("retry_failed")]
        asked = [*life.accepted, *unsure, *amends]
        self.payloads = {step.payload for step in asked}
        self.earliest = min((step.began for step in (*asked, *changes)), default=inf)
        blind = [step.began for step in (*unsure, *changes) if step.status not in ("refused", "not_found")]
        self.loose_from = min(blind, default=inf)

    def may_carry(self, run: Run) -> list[Step]:
        """The updates of which a run carries one, the newest first; empty when there are too many to say.

        The newest in its range that replaces, unless a cancel may have dropped it, and so on to one that is
        certain; where none replaces, the first, which counts whole.
        """
        (first, last), until = run.range, ended(run.claim)
        found: list[Step] = []
        for index in range(bisect_right(self._replacing, last, key=revision) - 1, -1, -1):
            step = self._replacing[index]
            if step.revision < first:
                break
            found.append(step)
            if not self._removals.may_have(step, until):
                return found
            if len(found) > MOST_DROPPED:
                return []
        oldest = bisect_left(self._accepted, first, key=revision)
        return [*found, *(step for step in self._accepted[oldest : oldest + 1] if step.revision <= last)]


class NothingSkipped(Rule):
    name = "R21"
    title = "blocked is not dropped"
    section = "4.4"
    sentence = "What was accepted before a claim is in that run, unless something ended or removed it."

    def judge(self, history: History) -> Iterator[Violation]:
        for life in history.lives.values():
            if len(life.accepted) > 1 and life.runs:
                removals = Removals(life)
                yield from self._passed_over(life, removals)
                yield from self._left_behind(life, removals)

    def _passed_over(self, life: Life, removals: Removals) -> Iterator[Violation]:
        """A run begins beyond an enqueue that no run before it held."""
        accepted = sorted(life.accepted, key=revision)
        index, reached = 0, 0
        for run in life.runs:
            while index < len(accepted) and accepted[index].revision < run.claim.first:
                step = accepted[index]
                index += 1
                self.met += 1
                if step.revision > reached and not removals.may_have(step, ended(run.claim)):
                    why = f"revision {step.revision} is in no run: the next begins at {run.claim.first}"
                    yield self.breach(life.key, why, step, run.claim)
            reached = max(reached, run.claim.revision)

    def _left_behind(self, life: Life, removals: Removals) -> Iterator[Violation]:
        """A run ends before an enqueue that was answered before its claim was sent."""
        answered, index, newest = by_answer(life.accepted), 0, None
        for claim in sorted(life.claims, key=began):
            while index < len(answered) and ended(answered[index]) < claim.began:
                if newest is None or answered[index].revision > newest.revision:
                    newest = answered[index]
                index += 1
            self.met += newest is not None
            if newest is None or newest.revision <= claim.revision:
                continue
            if not removals.may_have(newest, ended(claim)):
                why = f"the run ends at revision {claim.revision}, {newest.revision} had been accepted"
                yield self.breach(life.key, why, newest, claim)


class Numbered(Rule):
    name = "R11"
    title = "revisions grow"
    section = "3, revision"
    sentence = "An enqueue's revision is above that of every enqueue of its queue that was answered before."

    def judge(self, history: History) -> Iterator[Violation]:
        for queue, lives in history.by_queue.items():
            accepted = [step for life in lives for step in life.accepted]
            answered, index, newest = by_answer(accepted), 0, None
            for step in sorted(accepted, key=began):
                while ended(answered[index]) < step.began:
                    if newest is None or answered[index].revision > newest.revision:
                        newest = answered[index]
                    index += 1
                self.met += newest is not None
                if newest is not None and step.revision <= newest.revision:
                    why = f"revision {step.revision} was given after {newest.revision}"
                    yield self.breach((queue, step.id), why, newest, step)
            for life in lives:
                yield from self._differ(life)

    def _differ(self, life: Life) -> Iterator[Violation]:
        for a, b in pairwise(sorted(life.accepted, key=revision)):
            if a.revision == b.revision:
                yield self.breach(life.key, f"two enqueues got the revision {a.revision}", a, b)


class Keys(Rule):
    name = "R9"
    title = "a request_key acts once"
    section = "3, enqueue"
    sentence = "Of the enqueues with one key, within its time, one acts; the others repeat its answer."

    def judge(self, history: History) -> Iterator[Violation]:
        for queue, lives in history.by_queue.items():
            keyed: dict[str, list[Step]] = defaultdict(list)
            for life in lives:
                for step in life.enqueues:
                    if step.key and step.status not in (UNKNOWN, "refused"):
                        keyed[step.key].append(step)
            for key, steps in keyed.items():
                yield from self._one(queue, key, steps)

    def _one(self, queue: str, key: str, steps: list[Step]) -> Iterator[Violation]:
        self.met += len(steps) > 1
        if len({(step.status, step.first, step.revision) for step in steps}) > 1:
            yield self.breach((queue, steps[0].id), f"the key {key!r} acted twice", *steps)


def pending(seen: Read, revision: int) -> bool:
    """The contract's definition: in the range of current or successor, and in no dropped range."""
    live = [part for part in (seen.current, seen.successor) if part is not None]
    covered = any(first <= revision <= last for first, last in live)
    return covered and not any(first <= revision <= last for first, last in seen.dropped)


def in_outcome(seen: Read, revision: int) -> bool:
    return seen.outcome is not None and seen.outcome.first <= revision <= seen.outcome.revision


def began(step: Step) -> int:
    return step.began


def revision(step: Step) -> int:
    return step.revision


#: Answers of a cancel or forget that leave it open whether something was removed.
REMOVING = frozenset({"cancelled", "requested", "forgotten", UNKNOWN})


class Removals:
    """The cancels and forgets of an id, and whether one of them may have removed an enqueue."""

    def __init__(self, life: Life) -> None:
        steps = [s for s in life.others if s.op in ("cancel", "forget") and s.status in REMOVING]
        steps.sort(key=answer)
        self._answers = [answer(step) for step in steps]
        #: The earliest that any step from here on was sent.
        self._sent = [*accumulate((float(step.began) for step in reversed(steps)), min)][::-1]

    def may_have(self, step: Step, until: float) -> bool:
        """Whether one that was answered after `step` was sent had itself been sent by `until`."""
        index = bisect_right(self._answers, step.began)
        return index < len(self._sent) and self._sent[index] <= until


def answer(step: Step) -> float:
    return inf if step.ended is None else step.ended


class Ended:
    """The ranges of the runs that may have ended, rather than come back. They never overlap."""

    def __init__(self, life: Life) -> None:
        over = (run.range for run in life.runs if any(ends(step) for _, step in run.closers))
        self._ranges = sorted(over, key=itemgetter(1))

    def covers(self, revision: int) -> bool:
        index = bisect_left(self._ranges, revision, key=itemgetter(1))
        return index < len(self._ranges) and self._ranges[index][0] <= revision


def ends(step: Step) -> bool:
    """Whether a step may have ended its run for good."""
    return way_of(step) not in ("", "back") or step.unknown or step.op == "finish"


RULES = (Kept, Drained, Submitted, Keys, Numbered, NothingSkipped)
