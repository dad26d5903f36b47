"""The calls of the storage for nodes: reads of their states and results by the law of done, and the
enqueues of ready nodes with their arguments.

Evaluations that run at the same time share requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import UNSET, Raw
from msgspec.structs import replace

from dibs.client.calls.current_job import flow_worker
from dibs.client.connection.open_storage import OpenStorage
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.serde import JSON, Serde
from dibs.errors import ConfigurationError, PermanentError, QueueFull, Refused
from dibs.flow.arguments import encode_call
from dibs.flow.context import FlowContext
from dibs.flow.plan import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    WAITING,
    PlannedNode,
    completed_note,
    is_ended,
    revision_of,
)
from dibs.flow.running.live_flow import LiveFlow
from dibs.model.check_jobs import CheckedBatch, check_request
from dibs.model.job import JobData, NewJob, Outcome, OutcomeRetention, Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import End, EnqueueRequest, Reject, Settlement
from dibs.model.results import EnqueueResult
from dibs.model.rules import STOPPED, ticket_state
from dibs.model.wakeup import FLOWS, node_number
from dibs.storage.protocol import Storage

#: The most jobs of a call that joins the requests of other calls. A call with more is a request of its own.
MOST_SHARED: Final = 16


class SharedRequests:
    """An open storage whose reads, enqueues and ends of few jobs join those of other evaluations.

    The calls that arrive while a request is in flight form the next request, so a hundred evaluations of
    small flows send a few requests. It forwards all other verbs to the storage, so it serves wherever a
    Storage is expected.
    """

    def __init__(self, opened: OpenStorage) -> None:
        self._bounded = opened.bounded
        self._coalesced = opened.coalesced

    @classmethod
    def of(cls, opened: OpenStorage) -> Storage:
        """Return the shared requests of an open storage, typed as a storage."""
        return cast("Storage", cls(opened))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bounded, name)

    async def get(self, queue: str, ids: Sequence[str]) -> Sequence[Slot]:
        """Return the slots of ids. Raises StorageError."""
        if len(ids) > MOST_SHARED:
            return await self._bounded.get(queue, ids)
        return await _gather([self._coalesced.get(queue, id) for id in ids])

    async def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Enqueue requests, not as one atomic step. Raises Refused, OutcomeUnknown, StorageError."""
        if len(requests) > MOST_SHARED:
            return await self._bounded.enqueue(queue, requests)
        return await _gather([self._coalesced.enqueue(queue, request) for request in requests])

    async def end_run(self, id: str, fence: int, end: End) -> bool:
        """End a handed-off flow by its fence. Return False if this run has ended in another way."""
        settlement = Settlement(id=id, fence=fence, action=end)
        return (await self._coalesced.settle(FLOWS, settlement)).status == "done"


async def _gather(calls: list[Any]) -> Sequence[Any]:
    """Return the answers of calls, in order. A single call needs no task."""
    return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)


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


#: The most nodes whose arguments are in memory together.
CHUNK: Final = 1000


class NodeFailure(Exception):
    """A node cannot be enqueued; the message is the reason."""


async def enqueue_nodes(context: FlowContext, storage: Storage, limits: Limits, flow: LiveFlow) -> bool:
    """Enqueue the nodes that are ready, and note their revisions. Return whether any node was ready.

    A node that cannot be enqueued is noted as failed, with a text. A repeat after a crash is safe: each
    request has a request_key. Raise QueueFull if the queue of a node is at its `max_waiting`. The node is
    part of an accepted flow, so the evaluation repeats, whatever `when_full` says.
    """
    found = flow.state.take_ready()
    ready = found if flow.is_current else await _note_known(storage, flow, found)
    for begin in range(0, len(ready), CHUNK):
        numbers = ready[begin : begin + CHUNK]
        results = await _read_results(storage, flow, numbers)
        by_queue: dict[str, list[tuple[int, EnqueueRequest]]] = {}
        for number in numbers:
            try:
                request = _build_request(context, flow, number, results, limits)
            except NodeFailure as failure:
                flow.errors[number] = str(failure)
                flow.state.end(number, FAILED)
            else:
                by_queue.setdefault(flow.plan.queue_of(number), []).append((number, request))
        full = [
            queue
            for queue, items in by_queue.items()
            if not await _send(context.client(queue), storage, flow, items, limits)
        ]
        if full:
            raise QueueFull(f"the nodes wait for room in {', '.join(full)}", queue=full[0])
    return bool(found)


async def _note_known(storage: Storage, flow: LiveFlow, numbers: Sequence[int]) -> Sequence[int]:
    """Note the nodes that an aborted evaluation has enqueued, and return the others.

    A request_key recognizes such a node, too, but only for an hour, and not after `dibs move`. Reject does
    not know a node that was cancelled. In a retry of the flow, older ends of its nodes have no meaning.
    """
    if flow.revision != flow.stamp:
        return numbers
    slots = await read_slots(storage, flow, filter(flow.is_own, numbers))
    for number, slot in slots.items():
        if slot.current is not None:
            flow.state.enqueued(number, slot.current.revision)
        elif slot.outcome is not None:
            flow.state.end(number, END_NOTES[slot.outcome.kind])
    return [number for number in numbers if flow.state.notes[number] == WAITING]


async def _send(
    client: QueueClient,
    storage: Storage,
    flow: LiveFlow,
    items: Sequence[tuple[int, EnqueueRequest]],
    limits: Limits,
) -> bool:
    """Enqueue nodes of one queue, and note the answers. Return False if the queue stopped some of them."""
    requests = [request for _, request in items]
    if len(items) <= MOST_SHARED and client.storage_handle.enqueue_middleware is None:
        answers = await storage.enqueue(client.name, requests)
    else:
        answers = await client.enqueue_requests(CheckedBatch.of(requests, limits, plain=False))
    if (worker := flow_worker()) is not None:
        worker.claim_soon(client.name)
    taken = [
        (n, answer) for (n, _), answer in zip(items, answers, strict=True) if answer.status not in STOPPED
    ]
    for number, answer in taken:
        _apply_answer(flow, number, answer)
    # Another process has enqueued these nodes, and they may have ended since. Their wake-up may be the one
    # that started this evaluation, and no other would follow, so a read shows their state now.
    known = [number for (number, _), answer in zip(items, answers, strict=True) if answer.repeated]
    if known:
        apply_slots(flow, await read_slots(storage, flow, known))
    return len(taken) == len(items)


def _apply_answer(flow: LiveFlow, number: int, answer: EnqueueResult) -> None:
    flow.state.enqueued(number, answer.revision)
    # A repeated answer is that of the first enqueue, so only a read shows the state of the node now.
    if answer.status == "completed":
        flow.state.end(number, COMPLETED if flow.is_own(number) else completed_note(answer.revision))
    elif answer.status == "failed":
        flow.state.end(number, FAILED)


async def _read_results(storage: Storage, flow: LiveFlow, numbers: Sequence[int]) -> dict[int, bytes | None]:
    """Return the results that are arguments of nodes; None for a result that is not kept."""
    nodes = flow.plan.nodes
    wanted = dict.fromkeys(parent for number in numbers for parent in nodes[number].arguments())
    found = {parent: flow.results[parent] for parent in wanted if parent in flow.results}
    slots = await read_slots(storage, flow, [parent for parent in wanted if parent not in found])
    return found | {number: find_result(flow, number, slot) for number, slot in slots.items()}


def _build_request(
    context: FlowContext, flow: LiveFlow, number: int, results: Mapping[int, bytes | None], limits: Limits
) -> EnqueueRequest:
    """Return the request for a node. Raises NodeFailure, ConfigurationError for an unknown serde."""
    node = flow.plan.nodes[number]
    try:
        data = JobData(
            payload=_build_payload(context, flow, number, results),
            attributes=_build_attributes(flow, node),
            priority=node.priority,
            overrides=node.overrides,
            retention=keep_at_least(node.retention, flow.plan.keep),
            key=node.key,
        )
        request = EnqueueRequest(
            job=NewJob(id=flow.node_id(number), data=data, run_at=node.run_at, delay=node.delay),
            on_conflict=_conflict_rule(flow, number),
            request_key=request_key(flow, number),
        )
        check_request(request, limits)
    except (Refused, PermanentError) as error:
        label = f"node {number} of {flow.plan.queue_of(number)!r} cannot be enqueued"
        raise NodeFailure(f"{label}: {error}") from error
    return request


def _conflict_rule(flow: LiveFlow, number: int) -> Reject:
    """Return the rule for an id that is known already.

    The flow keeps an end of its own id, which it enqueued before a crash. A retry of the flow, and an id that
    other enqueues share, run again after a failure.
    """
    return Reject(failed=flow.is_own(number) and flow.revision == flow.stamp)


def request_key(flow: LiveFlow, number: int) -> str:
    """Return the request_key of a node: a repeat of the enqueue gets the first answer."""
    return f"{flow.key_prefix}{number}"


def _build_attributes(flow: LiveFlow, node: PlannedNode) -> dict[str, bytes]:
    if not node.attributes:
        return flow.node_attributes
    return {**{name: bytes(raw) for name, raw in node.attributes.items()}, **flow.node_attributes}


def keep_at_least(own: OutcomeRetention | None, keep: int | None) -> OutcomeRetention:
    """Return the retention of a node: its own, but at least `keep` ms; None is for ever."""
    own = own or OutcomeRetention()

    def longer(age: object) -> int | None:
        if age is None or keep is None:
            return None
        return max(age, keep) if isinstance(age, int) else keep

    return replace(
        own, completed=longer(own.completed), failed=longer(own.failed), cancelled=longer(own.cancelled)
    )


def _build_payload(
    context: FlowContext, flow: LiveFlow, number: int, results: Mapping[int, bytes | None]
) -> bytes:
    plan, node = flow.plan, flow.plan.nodes[number]
    if isinstance(node.data, Raw):
        return bytes(node.data)
    if isinstance(node.payload, bytes):
        return node.payload
    if node.call is None:
        raise Refused("the plan has no payload for it")

    def result_of(parent: int) -> bytes:
        if (result := results[parent]) is None:
            raise Refused(
                f"the result of node {parent} of {plan.queue_of(parent)!r} is not kept; keep results of "
                "nodes until the flow has ended"
            )
        return result

    def serde_of(parent: int) -> Serde:
        return find_serde(context, flow, plan.result_queue_of(parent))

    queue = plan.queue_of(number)
    serde = find_serde(context, flow, queue)
    try:
        payload = encode_call(node.call, serde, result_of, serde_of)
    except Refused:  # a ValueError
        raise
    except (ValueError, TypeError) as error:
        raise Refused(f"its arguments cannot be encoded: {error}") from error
    handler = context.handlers.get(queue)
    if handler is not None and handler.check_data is not None:
        handler.check_data(UNSET, payload)
    return payload


def find_serde(context: FlowContext, flow: LiveFlow, queue: str) -> Serde:
    """Return the serde of a queue. Raises ConfigurationError if this app has another one than the plan.

    The evaluation is then retried, by a worker whose app has the serde.
    """
    serde, wanted = context.client(queue).serde, flow.plan.serdes.get(queue)
    if serde is JSON and wanted is None:
        return serde
    if serde.name != wanted:
        raise ConfigurationError(
            f"the flow {flow.id!r} needs the serde {wanted or JSON.name!r} for {queue!r}, and this app has "
            f"{serde.name!r}; declare the queue with the same serde in each app with flows=True"
        )
    return serde
