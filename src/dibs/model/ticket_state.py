"""How an enqueue stands, told from the slot of its id (contract 1, Done)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dibs.model.job import Outcome, Slot
from dibs.model.transitions import unexpired

TicketStateKind = Literal["pending", "completed", "failed", "cancelled", "not_kept"]


class TicketState(Struct, frozen=True, gc=False):
    """`pending`, or how it ended; `outcome` only where the enqueue lies in the one that is kept."""

    kind: TicketStateKind
    outcome: Outcome | None = None


def ticket_state(slot: Slot, revision: int, now: int = 0) -> TicketState:
    """Return how the enqueue with this revision stands; a slot from Storage.get needs no `now`.

    Never a foreign outcome, never a hang: what is not pending is done, and what no outcome covers
    ended with its outcome not kept.
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
