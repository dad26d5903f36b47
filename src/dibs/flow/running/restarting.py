"""The restart of a flow after `retry_failed`: completed nodes stay, the others run again."""

from __future__ import annotations

import msgspec

from dibs.flow.notes import FAILED, WAITING, is_completed, is_open, open_note
from dibs.flow.running.decide import FlowState
from dibs.flow.running.ending import STAMP_ATTRIBUTE
from dibs.flow.running.live_flow import LiveFlow
from dibs.flow.running.node_reads import read_slots
from dibs.model.limits import LIMITS
from dibs.model.requests import JobPatch
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage


async def restart_nodes(storage: Storage, flow: LiveFlow) -> None:
    """Reset the notes of the nodes that did not complete, and retry those that failed.

    A failed node comes back with its memo, so that it repeats no completed step. The others wait again.
    """
    notes = list(flow.state.notes)
    failed = [n for n, note in enumerate(notes) if note == FAILED and n not in flow.errors]
    reset = [note if is_completed(note) or is_open(note) else WAITING for note in notes]
    live = await _retry_nodes(storage, flow, failed)
    for number, slot in (await read_slots(storage, flow, live)).items():
        if slot.current is not None:
            reset[number] = open_note(slot.current.revision)
    if flow.stamp != flow.revision:
        # A flow that is cancelled loses its memo, and its nodes are cancelled by this stamp.
        stamp = msgspec.json.encode(flow.stamp)
        await storage.amend(FLOWS, flow.id, JobPatch(attributes={STAMP_ATTRIBUTE: stamp}))
    flow.errors.clear()
    flow.state = FlowState(flow.plan, reset)
    flow.state.must_save = True
    flow.noted_revision = flow.revision


async def _retry_nodes(storage: Storage, flow: LiveFlow, numbers: list[int]) -> list[int]:
    """Retry failed nodes, and return the numbers of those that wait or run now."""
    by_queue: dict[str, list[int]] = {}
    for number in numbers:
        by_queue.setdefault(flow.plan.queue_of(number), []).append(number)
    live: list[int] = []
    for queue, members in by_queue.items():
        for begin in range(0, len(members), LIMITS.batch):
            chunk = members[begin : begin + LIMITS.batch]
            answers = await storage.retry_failed(queue, [flow.node_id(number) for number in chunk])
            live += [n for n, answer in zip(chunk, answers, strict=True) if answer in ("queued", "live")]
    return live
