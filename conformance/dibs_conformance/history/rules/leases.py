"""Rules of leases: one lives exactly as long as told, and is dead for good."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from math import inf

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.rules.accepted import began
from dibs_conformance.history.rules.rule import Rule, Violation, before, by_answer, ended
from dibs_conformance.history.step import Step


class LeasesRule(Rule):
    name = "R17"
    title = "leases hold"
    section = "3, Leases"
    sentence = (
        "No renewal shortens a lease or revives one; none is lost before its time unless it was dropped."
    )

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        for lease, steps in history.leases.items():
            queues: dict[str, list[Step]] = defaultdict(list)
            for step in steps:
                queues[step.queue].append(step)
            # Of one on several queues the earliest end is told, and no other.
            exact = len({step.queue for step in steps if step.op == "grant"}) < 2
            for queue, answered in queues.items():
                yield from self._check_queue(queue, lease, answered, exact=exact)
        yield from self._check_claims(history)

    def _check_queue(self, queue: str, lease: str, steps: list[Step], *, exact: bool) -> Iterator[Violation]:
        """Hold each renewal to the latest end that had been told before it was sent."""
        answered, index = by_answer(step for step in steps if step.until), 0
        latest: Step | None = None
        dropped = min((step.began for step in steps if step.op == "drop"), default=inf)
        dead = min((ended(s) for s in steps if s.status == "lost"), default=inf)
        for step, alone in renewals(steps):
            while index < len(answered) and ended(answered[index]) < step.began:
                latest = answered[index] if latest is None or answered[index].until > latest.until else latest
                index += 1
            self.met += 1
            if step.status == "alive" and dead < step.began:
                yield self.violation((queue, ""), f"the lease {lease[:8]} was lost and is alive again", step)
            elif step.status == "alive" and latest is not None:
                death = alone and (exact or latest.op != "grant")
                yield from self._check_alive(queue, latest, step, alone=death)
            elif step.status == "lost" and latest is not None and step.now < latest.until:
                yield from self._check_lost(queue, latest, step, dropped)

    def _check_alive(self, queue: str, latest: Step, step: Step, *, alone: bool) -> Iterator[Violation]:
        if step.until < latest.until:
            why = f"a renewal shortened the lease from {latest.until} to {step.until}"
            yield self.violation((queue, ""), why, latest, step)
        elif alone and step.now >= latest.until:
            why = f"the lease ended at {latest.until} and was renewed at {step.now}"
            yield self.violation((queue, ""), why, latest, step)

    def _check_lost(self, queue: str, latest: Step, step: Step, dropped: float) -> Iterator[Violation]:
        if dropped > ended(step):
            why = f"the lease was lost at {step.now}, it was told to live until {latest.until}"
            yield self.violation((queue, ""), why, latest, step)

    def _check_claims(self, history: RecordedHistory) -> Iterator[Violation]:
        """Nothing is claimed under a lease that was answered lost."""
        dead: dict[tuple[str, str], Step] = {}
        for lease, steps in history.leases.items():
            for step in by_answer(step for step in steps if step.status in ("lost", "dropped")):
                dead.setdefault((step.queue, lease), step)
        for id_steps in history.ids.values() if dead else ():
            for claim in id_steps.claims:
                death = dead.get((claim.queue, claim.lease))
                if death is not None and before(death, claim):
                    why = f"it was claimed under the dead lease {claim.lease[:8]}"
                    yield self.violation(id_steps.key, why, death, claim)


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


RULES = (LeasesRule,)
