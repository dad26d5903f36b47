"""The rules of the checker, in the order of the report; docs/reference/history.md tells them in words."""

from __future__ import annotations

from typing import Final

from dibs_conformance.history.rules import accepted as keeping
from dibs_conformance.history.rules import counting, ending, failing, leases, order
from dibs_conformance.history.rules import ownership as holding
from dibs_conformance.history.rules.linearizable import Explained
from dibs_conformance.history.rules.rule import Rule as Rule
from dibs_conformance.history.rules.rule import Violation as Violation

_ROOMS = (keeping, holding, ending, counting, order, leases, failing)

#: All of them, by number.
RULES: Final[tuple[type[Rule], ...]] = tuple(
    sorted(
        (Explained, *(rule for room in _ROOMS for rule in room.RULES)), key=lambda rule: int(rule.name[1:])
    )
)
