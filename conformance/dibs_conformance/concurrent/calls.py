"""What a client did: one call, when it began and returned, and what it was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from dibs.model.events import LogEvent
from dibs.model.job import Slot

#: `unknown`: it may have happened, also later. `refused`: it did not. `raised`: it should not have.
Fate = Literal["answered", "unknown", "refused", "raised"]


@dataclass(kw_only=True)
class Call:
    """One call of one client. Times of beginning and end are of any one clock that all clients share."""

    client: str
    verb: str
    queue: str
    args: Mapping[str, Any]
    #: The storage's time that was passed in, ms.
    now: int
    invoked: float
    #: Infinite while no reply has come.
    returned: float = inf
    fate: Fate = "unknown"
    answer: Any = None

    def overlaps(self, other: Call) -> bool:
        """Whether neither returned before the other began."""
        return self.invoked <= other.returned and other.invoked <= self.returned


@dataclass(kw_only=True)
class Look:
    """What is to be seen once everybody is at rest."""

    now: int
    slots: Mapping[str, Slot]
    #: The fail jobs, which have generated ids.
    failed: Mapping[str, Slot] = field(default_factory=dict)
    #: The whole log, read only at the end.
    events: Sequence[LogEvent] | None = None


@dataclass(kw_only=True)
class Round:
    """Calls that may overlap, and what was seen after them."""

    calls: list[Call]
    look: Look | None = None
