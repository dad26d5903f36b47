"""The state of one enqueue, read from the slot of its id (contract 1, When an enqueue is done)."""

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


def ticket_state(slot: Slot, revision: int, now: int = 0) -> TicketState:
    """Return the state of the enqueue with this revision.

    `now` is the time of the storage in ms; a slot from Storage.get needs none, because it has no expired
    outcome. An enqueue that is not pending is done. If no outcome covers its revision, its outcome was not
    kept.
    """
    if any(first <= revision <= last for first, last in slot.dropped):
        return TicketState("cancelled")
    for live in (slot.current, slot.successor):
        if live is not None and live.first <= revision <= live.revision:
            return TicketState("pending")
    outcome = unexpired(slot.outcome, now)
    if outcome is not None and outcome.first <= revision <= outcome.revision:
        return TicketState(outcome.kind, outcome)
    return TicketState("not_kept")
