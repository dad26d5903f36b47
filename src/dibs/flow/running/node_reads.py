"""Reads of nodes: their states by the law of done, and the results that become arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dibs.flow.notes import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    completed_note,
    is_ended,
    revision_of,
)
from dibs.flow.running.live_flow import LiveFlow
from dibs.model.job import Outcome, Slot
from dibs.model.limits import LIMITS
from dibs.model.ticket_state import ticket_state
from dibs.model.wakeup import node_number
from dibs.storage.protocol import Storage

#: The note of a node by the end of its job.
END_NOTES: Final[Mapping[str, int]] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "cancelled": CANCELLED,
    "not_kept": LOST,
}


async def read_slots(storage: Storage, flow: LiveFlow, numbers: Iterable[int]) -> dict[int, Slot]:
    """Return the slots of nodes, read in chunks of at most 1,000 ids of one queue."""
    by_queue: dict[str, list[int]] = {}
    for number in numbers:
        by_queue.setdefault(flow.plan.queue_of(number), []).append(number)
    slots: dict[int, Slot] = {}
    for queue, members in by_queue.items():
        for begin in range(0, len(members), LIMITS.batch):
            chunk = members[begin : begin + LIMITS.batch]
            found = await storage.get(queue, [flow.node_id(number) for number in chunk])
            slots.update(zip(chunk, found, strict=True))
    return slots


def apply_slots(flow: LiveFlow, slots: Mapping[int, Slot]) -> bool:
    """Note the ends of open nodes by their slots. Return whether a note changed."""
    changed = False
    for number, slot in slots.items():
        revision = revision_of(flow.state.notes[number])
        if revision is None:
            continue
        if flow.is_own(number):
            changed = _apply_own(flow, number, slot, revision) or changed
        elif (state := ticket_state(slot, revision)).kind != "pending":
            end = completed_note(revision) if state.kind == "completed" else END_NOTES[state.kind]
            flow.state.end(number, end)
            changed = True
    return changed


def _apply_own(flow: LiveFlow, number: int, slot: Slot, revision: int) -> bool:
    """Note the state of a node whose id only this flow enqueues.

    Another revision than the noted one is a retry by an operator: the node follows it.
    """
    if slot.current is not None:
        if slot.current.first <= revision <= slot.current.revision:
            return False
        flow.state.enqueued(number, slot.current.revision)
        return True
    outcome = slot.outcome
    flow.state.end(number, LOST if outcome is None else END_NOTES[outcome.kind])
    if outcome is not None and outcome.kind == "completed":
        flow.keep_result(number, outcome.result)
    return True


def apply_ends(flow: LiveFlow, ends: Mapping[str, bytes | None]) -> bool:
    """Note the nodes that this process has completed, by job id. Return whether a note changed.

    The completion of an id that only this flow enqueues is final, so it needs no read.
    """
    changed = False
    for id, result in ends.items():
        number = node_number(flow.id, id)
        if number is None or number >= len(flow.plan.nodes) or flow.node_id(number) != id:
            continue
        if not is_ended(flow.state.notes[number]):
            flow.state.end(number, COMPLETED)
            flow.keep_result(number, result)
            changed = True
    return changed


def find_result(flow: LiveFlow, number: int, slot: Slot) -> bytes | None:
    """Return the encoded result of a completed node; None if it is not kept."""
    outcome: Outcome | None = slot.outcome
    revision = revision_of(flow.state.notes[number])
    if revision is not None:  # a shared id, whose outcome may be that of another enqueue
        outcome = ticket_state(slot, revision).outcome
    if outcome is None or outcome.kind != "completed":
        return None
    return b"null" if outcome.result is None else outcome.result
