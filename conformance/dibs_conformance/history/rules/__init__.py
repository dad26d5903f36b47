"""The rules of the checker. docs/reference/history.md lists them.

`LinearizableRule` tries orders of the calls on an id with the oracle. The other rules check one sentence of
the contract each, about several ids, a queue, a lease, a log or the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.linearize import find_contradiction
from dibs_conformance.history.rules import order, queues
from dibs_conformance.history.rules.queues import HistoryRule as HistoryRule
from dibs_conformance.history.rules.queues import Violation as Violation
from dibs_conformance.order_search import UndecidedOrder


class LinearizableRule(HistoryRule):
    name = "R22"
    title = "some order explains it"
    section = "3; 3, The fold law; 4.1; 4.2; 4.3; 4.4; 4.6"
    sentence = "The calls on each id have an order, consistent with real time, that explains every answer."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        """Yield ids without such an order. Ids with too many overlapping calls are skipped."""
        for id_steps in history.ids.values():
            if any(claim.origin for claim in id_steps.claims):
                continue
            try:
                lacking = find_contradiction(history, id_steps)
            except UndecidedOrder:
                continue
            self.met += 1
            if lacking is not None:
                call = f"{lacking.op} {lacking.how}".strip()
                why = f"no order of its calls explains the answer {lacking.status!r} of a {call}"
                yield self.violation(id_steps.key, why, lacking)


#: All rules, by number.
RULES: Final[tuple[type[HistoryRule], ...]] = tuple(
    sorted(
        (LinearizableRule, *queues.RULES, *order.RULES),
        key=lambda rule: int(rule.name[1:]),
    )
)
