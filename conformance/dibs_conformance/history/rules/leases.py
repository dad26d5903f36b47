"""The rule about leases: a lease lives until its announced end, and never revives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from math import inf

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.rules.rule import HistoryRule, Violation, before, began, by_answer, ended
from dibs_conformance.steps import RecordedStep


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


RULES = (LeasesRule,)
