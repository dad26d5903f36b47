"""The rules of the checker. docs/reference/history.md lists them."""

from __future__ import annotations

from typing import Final

from dibs_conformance.history.rules import (
    accepted,
    configuring,
    counting,
    ending,
    event_log,
    failing,
    leases,
    limits,
    memos,
    order,
    ownership,
    reading,
)
from dibs_conformance.history.rules.linearizable import LinearizableRule
from dibs_conformance.history.rules.rule import HistoryRule as HistoryRule
from dibs_conformance.history.rules.rule import Violation as Violation

_MODULES = (
    accepted,
    ownership,
    ending,
    counting,
    order,
    leases,
    failing,
    memos,
    configuring,
    limits,
    event_log,
    reading,
)

#: All rules, by number.
RULES: Final[tuple[type[HistoryRule], ...]] = tuple(
    sorted(
        (LinearizableRule, *(rule for module in _MODULES for rule in module.RULES)),
        key=lambda rule: int(rule.name[1:]),
    )
)
