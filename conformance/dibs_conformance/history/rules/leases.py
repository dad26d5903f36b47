"""Rules of leases: one lives exactly as long as told, and is dead for good."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from math import inf

from dibs_conformance.history.by_id import History
from dibs_conformance.history.rules.accepted import began
from dibs_conformance.history.rules.rule import Rule, Violation, before, by_answer, ended
from dibs_conformance.history.step import Step


class LeasesHold(Rule):
    name = "R17"
    title = "leases hold"
    section = "3, Leases"
    sentence = (
        "No renewal shortens a lease or revives one; none is lost before its time unless it was dropped."
    )

    def judge(self, history: History) -> Iterator[Violation]:
        for lease, steps in history.leases.items():
            queues: dict[str, list[Step]] = defaultdict(list)
            for step in steps:
                queues[step.queue].append(step)
            # Of one on several queues the earliest end is told, and no other.
            exact = len({step.queue for step in steps if step.op == "grant"}) < 2
            for queue, told in queues.items():
                yield from self._one(queue, lease, told, exact=exact)
        yield from self._claims(history)

    def _one(self, queue: str, lease: str, steps: list[Step], *, exact: bool) -> Iterator[Violation]:
        """Hold each renewal to the latest end that had been told before it was sent."""
        told, index = by_answer(step for step in steps if step.until), 0
        latest: Step | None = None
        dropped = min((step.began for step in steps if step.op == "drop"), default=inf)
        dead = min((ended(s) for s in steps if s.status == "lost"), default=inf)
        for step, lone in renewals(steps):
            while index < len(told) and ended(told[index]) < step.began:
                latest = told[index] if latest is None or told[index].until > latest.until else latest
                index += 1
            self.met += 1
            if step.status == "alive" and dead < step.began:
                yield self.breach((queue, ""), f"the lease {lease[:8]} was lost and is alive again", step)
            elif step.status == "alive" and latest is not None:
                known = lone and (exact or latest.op != "grant")
                yield from self._alive(queue, latest, step, lone=known)
            elif step.status == "lost" and latest is not None and step.now < latest.until:
                yield from self._lost(queue, latest, step, dropped)

    def _alive(self, queue: str, latest: Step, step: Step, *, lone: bool) -> Iterator[Violation]:
        if step.until < latest.until:
            why = f"a renewal shortened the lease from {latest.until} to {step.until}"
            yield self.breach((queue, ""), why, latest, step)
        elif lone and step.now >= latest.until:
            why = f"the lease ended at {latest.until} and was renewed at {step.now}"
            yield self.breach((queue, ""), why, latest, step)

    def _lost(self, queue: str, latest: Step, step: Step, dropped: float) -> Iterator[Violation]:
        if dropped > ended(step):
            why = f"the lease was lost at {step.now}, it was told to live until {latest.until}"
            yield self.breach((queue, ""), why, latest, step)

    def _claims(self, history: History) -> Iterator[Violation]:
        """Nothing is claimed under a lease that was answered lost."""
        dead: dict[tuple[str, str], Step] = {}
        for lease, steps in history.leases.items():
            for death in by_answer(step for step in steps if step.status in ("lost", "dropped")):
                dead.setdefault((death.queue, lease), death)
        for life in history.lives.values() if dead else ():
            for claim in life.claims:
                known = dead.get((claim.queue, claim.lease))
                if known is not None and before(known, claim):
                    why = f"it was claimed under the dead lease {claim.lease[:8]}"
                    yield self.breach(life.key, why, known, claim)


def renewals(steps: list[Step]) -> Iterator[tuple[Step, bool]]:
    """The renewals that were answered, in the order they were sent, and whether none overlapped.

    Without overlap the latest end told is the lease's end; with it, another may have moved it meanwhile.
    """
    sent = sorted((step for step in steps if step.op == "renew"), key=began)
    latest = -inf
    for step, following in zip_longest(sent, sent[1:]):
        if step.ended is None:
            latest = inf
            continue
        yield step, latest < step.began and (following is None or following.began > step.ended)
        latest = max(latest, step.ended)


RULES = (LeasesHold,)
