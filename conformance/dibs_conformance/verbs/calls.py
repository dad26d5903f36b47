"""The record of what concurrent clients did: calls, rounds of calls, and snapshots of the storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

from attrs import define, field

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.requests import Settings

#: The end of a call. `unknown`: the call has no answer, and may take effect at any time after it was sent.
#: `refused`: it had no effect. `raised`: it raised an exception that the contract does not allow.
Completion = Literal["answered", "unknown", "refused", "raised"]


@define(kw_only=True)
class ClientCall:
    """One call of one client, with the times at which it was sent (`invoked`) and answered (`returned`).

    All clients of an example take both times from the same clock.
    """

    client: str
    operation: str
    queue: str
    args: Mapping[str, Any]
    #: The storage time passed as an argument, in ms; 0 if the call has the time of the storage itself.
    now: int
    invoked: float
    #: Infinite until the answer arrives.
    returned: float = inf
    completion: Completion = "unknown"
    answer: Any = None

    def overlaps(self, other: ClientCall) -> bool:
        """Return whether the two calls overlap in time."""
        return self.invoked <= other.returned and other.invoked <= self.returned


@define(kw_only=True)
class Snapshot:
    """The content of a queue, read while all clients are idle."""

    now: int
    slots: Mapping[str, Slot]
    #: Jobs of the fail queue. Their ids are generated.
    failed: Mapping[str, Slot] = field(factory=dict)
    #: The settings of the queue and all events of its log. They are read only after the last round.
    settings: Settings | None = None
    events: Sequence[LogEvent] | None = None
    #: The offset of each event.
    offsets: Sequence[str] = ()


@define(kw_only=True)
class Round:
    """Calls that may overlap, and a snapshot taken after they returned."""

    calls: list[ClientCall]
    snapshot: Snapshot | None = None
