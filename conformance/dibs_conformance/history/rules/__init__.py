"""The rules of the checker. docs/reference/history.md lists them.

Most rules check one sentence of the contract each. `LinearizableRule` tries orders of calls on a model of the
id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dibs_conformance.history.by_id import RecordedHistory
from dibs_conformance.history.linearize import is_linearizable
from dibs_conformance.history.rules import accepted, ending, order, ownership, reading, runs, settings
from dibs_conformance.history.rules.rule import HistoryRule as HistoryRule
from dibs_conformance.history.rules.rule import Violation as Violation
from dibs_conformance.order_search import UndecidedOrder


class LinearizableRule(HistoryRule):
    name = "R22"
    title = "some order explains it"
    section = "3"
    sentence = "The calls on each id have an order, consistent with real time, that explains every answer."

    def check(self, history: RecordedHistory) -> Iterator[Violation]:
        """Yield ids without such an order. Ids with too many overlapping calls are skipped."""
        for id_steps in history.ids.values() if not history.partial else ():
            if any(claim.origin for claim in id_steps.claims):
                continue
            try:
                linearizable = is_linearizable(history, id_steps)
            except UndecidedOrder:
                continue
            self.met += 1
            if not linearizable:
                yield self.violation(id_steps.key, "no order of these calls explains their answers")


_MODULES = (accepted, ownership, ending, runs, order, settings, reading)

#: All rules, by number.
RULES: Final[tuple[type[HistoryRule], ...]] = tuple(
    sorted(
        (LinearizableRule, *(rule for module in _MODULES for rule in module.RULES)),
        key=lambda rule: int(rule.name[1:]),
    )
)
