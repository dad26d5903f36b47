"""The end of a flow: its outcome, its cancellation, and the nodes of a flow that others have ended. Its
restart after `retry_failed`: completed nodes stay, the others run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import msgspec

from dibs.flow.batch.plan import FAILED_ATTRIBUTE, count_notes
from dibs.flow.plan import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    SKIPPED,
    STATE_NAMES,
    WAITING,
    Plan,
    decode_plan,
    is_completed,
    is_ended,
    is_open,
    node_id,
    open_note,
)
from dibs.flow.running.decide import FlowState
from dibs.flow.running.live_flow import FlowChanged, LiveFlow
from dibs.flow.running.node_calls import SharedRequests, find_result, read_slots
from dibs.model.job import Error, JobData, Outcome
from dibs.model.limits import LIMITS
from dibs.model.requests import Cancelled, Complete, Fail, JobPatch
from dibs.model.results import CancelStatus
from dibs.model.wakeup import (
    CANCELLED_HINT,
    EVALUATIONS,
    FLOWS,
    Hint,
    flow_of,
    wake_up_request,
    with_wake_up,
)
from dibs.storage.protocol import Storage

#: The attribute of a flow that asks its evaluation to cancel it.
CANCEL_ATTRIBUTE: Final = "dibs.cancel"
#: The attribute of a flow whose retry has another stamp than its first revision.
STAMP_ATTRIBUTE: Final = "dibs.stamp"
#: The attribute of an ended flow: one digit per node, its note. It is missing if all nodes completed.
NODES_ATTRIBUTE: Final = "dibs.nodes"
#: The type of the error of a flow whose nodes failed.
FLOW_FAILED: Final = "FlowFailed"
#: The most failed nodes that the error of a flow names.
_NAMED: Final = 5


async def end_flow(storage: Storage, flow: LiveFlow) -> None:
    """Finish the job of a flow whose nodes have all ended. Raises FlowChanged if it has ended before."""
    parent = flow_of(flow.attributes)
    is_atomic = storage.capabilities.cross_queue
    end = await _find_end(storage, flow)
    if parent is not None and is_atomic:
        end = with_wake_up(end, flow.id, flow.attributes)
    if not isinstance(end, Fail) and not all(map(is_completed, flow.state.notes)):
        await _amend(storage, flow.id, NODES_ATTRIBUTE, _node_digits(flow.state.notes))
    if isinstance(end, Fail) and flow.state.unsaved:
        # A retry of the flow needs the notes. A frozen evaluation may have replaced them by older ones.
        await save_notes(storage, flow)
    if not await cast("SharedRequests", storage).end_run(flow.id, flow.fence, end):
        raise FlowChanged
    if parent is not None and not is_atomic:
        await wake_up(storage, parent)


async def save_notes(storage: Storage, flow: LiveFlow) -> None:
    """Store the notes and the progress on the flow job. Raises FlowChanged if its run has ended."""
    memo, progress = flow.encode_memo(), msgspec.json.encode(flow.state.counts())
    if await storage.report(FLOWS, flow.id, flow.fence, progress=progress, memo=memo) == "lost":
        raise FlowChanged
    flow.memo = memo
    flow.state.saved()


async def _find_end(storage: Storage, flow: LiveFlow) -> Complete | Fail:
    if flow.plan.tolerant:
        return Complete(result=msgspec.json.encode(count_notes(flow.state.notes)))
    if causes := flow.state.causes_of_failure():
        return Fail(error=await _describe_failure(storage, flow, causes))
    returns = flow.plan.returns
    if returns is None:
        return Complete(result=b"null")
    result = flow.results.get(returns)
    if result is None:
        result = find_result(flow, returns, (await read_slots(storage, flow, [returns]))[returns])
    if result is not None:
        return Complete(result=result)
    message = f"all nodes completed, but the result of {_label(flow, returns)} is not kept"
    return Fail(error=Error(type="ResultNotKept", message=message))


async def _describe_failure(storage: Storage, flow: LiveFlow, causes: list[int]) -> Error:
    """Return the error of a failed flow, which names the first nodes that failed."""
    named = causes[:_NAMED]
    slots = await read_slots(storage, flow, named)
    reasons = [f"{_label(flow, number)} {_reason(flow, number, slots[number].outcome)}" for number in named]
    skipped = flow.state.notes.count(SKIPPED)
    message = f"{len(causes)} of {len(flow.state.notes)} nodes did not complete: {'; '.join(reasons)}"
    message += f"; and {len(causes) - _NAMED} more" if len(causes) > _NAMED else ""
    message += f"; {skipped} skipped" if skipped else ""
    return Error(type=FLOW_FAILED, message=message, kind="permanent")


def _label(flow: LiveFlow, number: int) -> str:
    return f"node {number} ({flow.plan.queue_of(number)}/{flow.node_id(number)})"


def _reason(flow: LiveFlow, number: int, outcome: Outcome | None) -> str:
    note = flow.state.notes[number]
    if number in flow.errors:
        return f"failed: {flow.errors[number]}"
    if note == FAILED and outcome is not None and outcome.error is not None:
        return f"failed: {outcome.error.type}: {outcome.error.message}"
    return "has ended without a kept outcome" if note == 4 else f"was {STATE_NAMES[note]}"


def _node_digits(notes: Iterable[int]) -> str:
    return "".join(str(COMPLETED if note < 0 else note) for note in notes)


async def report_failure(storage: Storage, flow: LiveFlow) -> None:
    """Note the first failure in a segment on its batch, for `on_first_failure`, and wake the batch."""
    parent = flow_of(flow.attributes)
    if parent is None or not flow.plan.tolerant or flow.has_reported_failure:
        return
    if any(note in (FAILED, CANCELLED, LOST) for note in flow.state.notes):
        await _amend(storage, parent, FAILED_ATTRIBUTE, value=True)
        await wake_up(storage, parent)
        flow.has_reported_failure = True


# -- cancel --------------------------------------------------------------------------------------------------


def is_cancel_requested(flow: LiveFlow) -> bool:
    """Return whether `cancel` of the stored flow has marked the flow."""
    return flow.attributes.get(CANCEL_ATTRIBUTE) == b"true"


async def cancel_flow(storage: Storage, flow: LiveFlow) -> None:
    """Cancel the nodes of this flow alone that have not ended, and end the flow as cancelled."""
    notes = flow.state.notes
    # A waiting node may be enqueued, too: an evaluation that was aborted has not stored its notes.
    open_nodes = [n for n, note in enumerate(notes) if not is_ended(note)]
    found = await _cancel_nodes(storage, flow.plan, flow.id, flow.stamp, open_nodes)
    ended = [_note_after_cancel(note, found.get(number)) for number, note in enumerate(notes)]
    await _amend(storage, flow.id, NODES_ATTRIBUTE, _node_digits(ended))
    answer = await storage.finish(FLOWS, flow.id, Cancelled(), flow.revision)
    if answer == "done" and (parent := flow_of(flow.attributes)) is not None:
        await wake_up(storage, parent)


def _note_after_cancel(note: int, answer: CancelStatus | None) -> int:
    """Return the last note of a node. `answer` is None for a node that the cancel left alone."""
    if is_ended(note):
        return note
    if answer == "completed":
        return COMPLETED
    if answer == "failed":
        return FAILED
    if note == WAITING and answer in (None, "not_found"):
        return SKIPPED
    return LOST if answer == "not_found" else CANCELLED


async def clean_up(storage: Storage, id: str, outcome: Outcome | None) -> None:
    """Cancel the nodes of a flow that was cancelled as a job, without its evaluation.

    The parent of a nested flow is woken, because such an end wakes no flow.
    """
    data = None if outcome is None else outcome.data
    if outcome is None or outcome.kind != "cancelled" or data is None:
        return
    if NODES_ATTRIBUTE in data.attributes:  # its evaluation has cancelled it
        return
    try:
        plan = decode_plan(data.payload)
    except ValueError:
        return
    await _cancel_nodes(storage, plan, id, _stamp(outcome, data), range(len(plan.nodes)))
    patch = {NODES_ATTRIBUTE: msgspec.json.encode("")}
    await storage.amend(FLOWS, id, JobPatch(attributes=patch))
    if (parent := flow_of(data.attributes)) is not None:
        await wake_up(storage, parent)


def _stamp(outcome: Outcome, data: JobData) -> int:
    raw = data.attributes.get(STAMP_ATTRIBUTE)
    return outcome.first if raw is None else msgspec.json.decode(raw, type=int)


async def _cancel_nodes(
    storage: Storage, plan: Plan, id: str, stamp: int, numbers: Iterable[int]
) -> dict[int, CancelStatus]:
    """Cancel the nodes that only this flow enqueues. Return the answer of the storage for each."""
    by_queue: dict[str, list[int]] = {}
    for number in numbers:
        if not plan.nodes[number].id:
            by_queue.setdefault(plan.queue_of(number), []).append(number)
    found: dict[int, CancelStatus] = {}
    for queue, members in by_queue.items():
        for begin in range(0, len(members), LIMITS.batch):
            chunk = members[begin : begin + LIMITS.batch]
            ids = [node_id(plan, id, stamp, number) for number in chunk]
            answers = await storage.cancel(queue, ids, running=True)
            found.update(zip(chunk, answers, strict=True))
            if queue == FLOWS:  # the nodes of a nested flow are cancelled by its own evaluation
                for nested, answer in zip(ids, answers, strict=True):
                    if answer in ("cancelled", "requested"):
                        await wake_up(storage, nested, CANCELLED_HINT)
    return found


async def _amend(storage: Storage, id: str, name: str, value: object) -> None:
    await storage.amend(FLOWS, id, JobPatch(attributes={name: msgspec.json.encode(value)}))


async def wake_up(storage: Storage, flow_id: str, hint: Hint | None = None) -> None:
    """Make the evaluation of a flow due at once."""
    await storage.enqueue(EVALUATIONS, [wake_up_request(flow_id, hint)])


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
