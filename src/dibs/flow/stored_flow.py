"""`StoredFlow`: the status of a stored flow, its cancellation and its retry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from dibs.client.options.arguments import new_id
from dibs.client.status import Status, slot_status
from dibs.client.ticket import Ticket
from dibs.errors import JobAbsent
from dibs.flow.context import FlowContext
from dibs.flow.plan import (
    COMPLETED,
    WAITING,
    FlowMemo,
    Plan,
    decode_memo,
    decode_plan,
    is_open,
    node_id,
    revision_of,
    state_name,
)
from dibs.flow.running.ending import CANCEL_ATTRIBUTE, NODES_ATTRIBUTE, STAMP_ATTRIBUTE, wake_up
from dibs.model.job import Error, JobData, Slot
from dibs.model.limits import LIMITS
from dibs.model.requests import JobPatch
from dibs.model.results import CancelStatus, RetryFailedStatus
from dibs.model.rules import ticket_state
from dibs.model.wakeup import FLOWS, Hint

if TYPE_CHECKING:
    from dibs.client.sync.flow import BlockingStoredFlow

NodeState = Literal[
    "waiting",
    "scheduled",
    "queued",
    "active",
    "handed_off",
    "completed",
    "failed",
    "cancelled",
    "lost",
    "skipped",
]


class NodeStatus(Struct, frozen=True, kw_only=True):
    """The state of one node of a flow."""

    number: int
    """Number of the node, from 0."""
    queue: str
    """Name of the queue."""
    id: str
    """Id of the job."""
    state: NodeState
    """State: "waiting" for its parents; "queued", "active" or "handed_off" as a job; "completed", "failed",
    "cancelled", "lost" (it ended, and its outcome is not kept) or "skipped"."""
    parents: tuple[int, ...] = ()
    """Numbers of the parents that must complete."""
    ignored: tuple[int, ...] = ()
    """Numbers of the parents whose failure is ignored."""
    error: str = ""
    """Error of a failed node: type and message."""


class FlowStatus(Struct, frozen=True, kw_only=True):
    """The state of a flow and of its nodes."""

    id: str
    """Id of the flow."""
    state: str
    """State of the flow job: "waiting" before its start, "active" or "handed_off" while its nodes run,
    "completed", "failed" or "cancelled"."""
    total: int
    """Number of nodes."""
    completed: int
    """Number of nodes that completed."""
    failed: int
    """Number of nodes that failed, were cancelled or are lost."""
    skipped: int
    """Number of nodes that never run, because a parent did not complete."""
    open: int
    """Number of nodes that have not ended."""
    nodes: tuple[NodeStatus, ...]
    """The nodes, by number."""
    error: Error | None = None
    """Error of a failed flow."""
    job: Status | None = None
    """Status of the flow job."""


class StoredFlow:
    """A flow in the storage, by its id; returned by `app.get_flow(id)`."""

    def __init__(self, context: FlowContext, id: str) -> None:
        self._context = context
        self._client = context.flows
        self.id: str = id
        """Id of the flow."""

    def __repr__(self) -> str:
        return f"<StoredFlow {self.id!r}>"

    @property
    def sync(self) -> BlockingStoredFlow:
        """This flow with blocking methods, for code without an event loop."""
        from dibs.client.sync.flow import BlockingStoredFlow  # noqa: PLC0415 - see StoredQueue.sync

        return BlockingStoredFlow(self)

    async def status(self) -> FlowStatus | None:
        """Return the state of the flow and of each node; None for an unknown flow.

            status = await app.get_flow("album-42").status()
            if status is not None:
                print([node.state for node in status.nodes])

        The states of open nodes are read from their jobs, 1,000 in one request. Raises StorageError,
        ValueError if the job is no flow.
        """
        slot = await self._client.get(self.id)
        stored = _find_data(slot)
        if stored is None:
            return None
        data, first = stored
        plan = decode_plan(data.payload)
        memo = _find_memo(slot, data, first, plan)
        jobs = await self._read_jobs(plan, memo)
        nodes = tuple(
            self._node_status(plan, memo, number, jobs.get(number)) for number in range(len(plan.nodes))
        )
        job = slot_status(self._client, self.id, slot)
        return _flow_status(self.id, job, nodes)

    async def ticket(self) -> Ticket[Any]:
        """Return the ticket of the flow, as its enqueue did. Raises JobAbsent for an unknown flow."""
        slot = await self._client.get(self.id)
        part = slot.current or slot.outcome
        if part is None:
            raise JobAbsent(queue=FLOWS, id=self.id)
        stored = _find_data(slot)
        decode = None
        if stored is not None:
            plan = decode_plan(stored[0].payload)
            if plan.returns is not None:
                decode = self._context.decoder_of(plan.result_queue_of(plan.returns))
        return Ticket(self._client, self.id, part.revision, decode)

    async def cancel(self) -> CancelStatus:
        """Cancel the flow: its evaluation cancels the nodes that are open, and ends the flow as cancelled.

            effect = await app.get_flow("album-42").cancel()

        Jobs with an id of their own, which other flows may share, go on. Returns "cancelled" for a flow that
        had not started, "requested", the kind of the end of an ended flow, or "not_found".
        """
        storage = await self._client.bounded_storage()
        (answer,) = await storage.cancel(FLOWS, [self.id])
        if answer != "active":
            return answer
        patch = JobPatch(attributes={CANCEL_ATTRIBUTE: b"true"})
        await storage.amend(FLOWS, self.id, patch)
        slot = await self._client.get(self.id)
        revision = 0 if slot.current is None else slot.current.revision
        await wake_up(storage, self.id, Hint(token=f"cancel {revision}"))
        return "requested"

    async def wake(self) -> None:
        """Make the evaluation of the flow due at once. It comes by itself within a minute.

            await app.get_flow("album-42").wake()

        Useful after a change that dibs does not notice, such as a cancel of the flow job by another program.
        """
        await wake_up(await self._client.bounded_storage(), self.id, Hint(token=f"wake {new_id()}"))

    async def retry_failed(self) -> RetryFailedStatus:
        """Return a failed flow to its queue: completed nodes stay, and the others run again.

            effect = await app.get_flow("album-42").retry_failed()

        Returns "queued"; "live" if the flow has not ended; "completed" or "cancelled" if it did not fail;
        "not_found".
        """
        storage = await self._client.bounded_storage()
        patch = JobPatch(attributes={CANCEL_ATTRIBUTE: b"false"})
        slot = await self._client.get(self.id)
        if slot.current is None and slot.outcome is not None and slot.outcome.kind == "failed":
            await storage.amend(FLOWS, self.id, patch)
        (answer,) = await storage.retry_failed(FLOWS, [self.id])
        return answer

    async def _read_jobs(self, plan: Plan, memo: FlowMemo) -> dict[int, Slot]:
        """Return the slots of the nodes that are open, or ended with an error.

        A waiting node of this flow alone is read, too: an evaluation stores its notes after it has enqueued.
        """
        by_queue: dict[str, list[int]] = {}
        for number, note in enumerate(memo.notes):
            is_shared = bool(plan.nodes[number].id)
            if note >= 0 and note != COMPLETED and not (note == WAITING and is_shared):
                by_queue.setdefault(plan.queue_of(number), []).append(number)
        storage = await self._client.bounded_storage()
        slots: dict[int, Slot] = {}
        for queue, numbers in by_queue.items():
            for begin in range(0, len(numbers), LIMITS.batch):
                chunk = numbers[begin : begin + LIMITS.batch]
                ids = [node_id(plan, self.id, memo.stamp, number) for number in chunk]
                slots.update(zip(chunk, await storage.get(queue, ids), strict=True))
        return slots

    def _node_status(self, plan: Plan, memo: FlowMemo, number: int, slot: Slot | None) -> NodeStatus:
        node, note = plan.nodes[number], memo.notes[number]
        state, error = state_name(note), memo.errors.get(number, "")
        outcome = None if slot is None else slot.outcome
        if slot is not None and (is_open(note) or note == WAITING):
            state = _job_state(slot, revision_of(note))
        if state == "failed" and not error and outcome is not None and outcome.error is not None:
            error = f"{outcome.error.type}: {outcome.error.message}"
        return NodeStatus(
            number=number,
            queue=plan.queue_of(number),
            id=node_id(plan, self.id, memo.stamp, number),
            state=state,  # type: ignore[arg-type]
            parents=node.required(),
            ignored=node.after_any,
            error=error,
        )


def _job_state(slot: Slot, revision: int | None) -> str:
    """Return the state of a node by its job, which may have ended since the notes were stored.

    `revision` is None for a node that has not been enqueued by its notes.
    """
    job = slot.current
    if revision is None:
        latest = job or slot.outcome
        if latest is None:
            return "waiting"
        revision = latest.revision
    if job is None or job.run is None:
        kind = ticket_state(slot, revision).kind
        return {"pending": "queued", "not_kept": "lost"}.get(kind, kind)
    return "active" if job.run.lease is not None else "handed_off"


def find_plan(slot: Slot) -> Plan | None:
    """Return the plan of a flow job; None if it is not kept. Raises ValueError for a job that is no flow."""
    stored = _find_data(slot)
    return None if stored is None else decode_plan(stored[0].payload)


def _find_data(slot: Slot) -> tuple[JobData, int] | None:
    """Return the data of a flow job, and the first revision; None if they are not kept."""
    if slot.current is not None:
        return slot.current.data, slot.current.first
    if slot.outcome is not None and slot.outcome.data is not None:
        return slot.outcome.data, slot.outcome.first
    return None


def _find_memo(slot: Slot, data: JobData, first: int, plan: Plan) -> FlowMemo:
    """Return the notes of a flow: its memo, or for a completed or cancelled one its attribute."""
    if data.memo is not None:
        return decode_memo(data.memo)
    stamp = data.attributes.get(STAMP_ATTRIBUTE)
    memo = FlowMemo(first if stamp is None else msgspec.json.decode(stamp, type=int), first, [])
    digits = msgspec.json.decode(data.attributes.get(NODES_ATTRIBUTE, b'""'), type=str)
    ended = slot.current is None and slot.outcome is not None and slot.outcome.kind == "completed"
    default = COMPLETED if ended else WAITING
    memo.notes = list(map(int, digits)) if digits else [default] * len(plan.nodes)
    return memo


def _flow_status(id: str, job: Status | None, nodes: Sequence[NodeStatus]) -> FlowStatus:
    counts: Mapping[str, int] = {
        "completed": sum(node.state == "completed" for node in nodes),
        "failed": sum(node.state in ("failed", "cancelled", "lost") for node in nodes),
        "skipped": sum(node.state == "skipped" for node in nodes),
    }
    return FlowStatus(
        id=id,
        state="waiting" if job is None else job.state,
        total=len(nodes),
        open=len(nodes) - sum(counts.values()),
        nodes=tuple(nodes),
        error=None if job is None else job.error,
        job=job,
        **counts,
    )
