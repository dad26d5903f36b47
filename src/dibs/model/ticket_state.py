"""The state of one enqueue: pending, or its end (contract 1, When an enqueue is done).

A caller that waits for an enqueue holds a Ticket with the revision of that enqueue. The id may have run again
since, so the outcome of the id may belong to another enqueue. The revision shows which one.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dibs.model.job import Outcome, Slot
from dibs.model.transitions import unexpired

TicketStateKind = Literal["pending", "completed", "failed", "cancelled", "not_kept"]


class TicketState(Struct, frozen=True, gc=False):
    """The state of the enqueue that a `Ticket` waits for."""

    #: `pending`, the kind of its end, or `not_kept` for an end without a kept outcome.
    kind: TicketStateKind
    #: The kept outcome of the enqueue; None if it is pending, dropped or not kept.
    outcome: Outcome | None = None
    #: For `not_kept`: "ended" if a later run of the id has a kept outcome, "live" if a later enqueue of the
    #: id waits or runs, None if the storage keeps nothing later.
    later: Literal["ended", "live"] | None = None


def ticket_state(slot: Slot, revision: int, now: int = 0) -> TicketState:
    """Return the state of the enqueue with this revision, from the slot of its id.

    `now` is the time of the storage in ms. For a slot from Storage.get, 0 is correct, because such a slot has
    no expired outcome. The kind is `not_kept` if the enqueue has ended and no outcome covers its revision.
    """
    if any(first <= revision <= last for first, last in slot.dropped):
        return TicketState("cancelled")
    for live in (slot.current, slot.successor):
        if live is not None and live.first <= revision <= live.revision:
            return TicketState("pending")
    outcome = unexpired(slot.outcome, now)
    if outcome is not None and outcome.first <= revision <= outcome.revision:
        return TicketState(outcome.kind, outcome)
    if outcome is not None and outcome.first > revision:
        return TicketState("not_kept", later="ended")
    return TicketState("not_kept", later=None if slot.current is None else "live")
