"""The rule that needs no insight: for each id, some order of the calls explains every answer."""

from __future__ import annotations

from collections.abc import Iterator

from dibs_conformance.history.by_id import History
from dibs_conformance.history.linearize import TooWide, explained
from dibs_conformance.history.rules.rule import Rule, Violation


class Explained(Rule):
    name = "R22"
    title = "some order explains it"
    section = "3"
    sentence = (
        "Of the calls on one id there is an order, true to what followed what, that explains every answer."
    )

    def judge(self, history: History) -> Iterator[Violation]:
        """Ids of which too many calls overlap, or that nobody can follow, are passed over."""
        for life in history.lives.values() if not history.partial else ():
            if any(claim.origin for claim in life.claims):
                continue
            try:
                holds = explained(history, life)
            except TooWide:
                continue
            self.met += 1
            if not holds:
                yield self.breach(life.key, "no order of these calls explains their answers")
