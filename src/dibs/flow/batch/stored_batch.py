"""`StoredBatch`: a batch by its id, to add members to it, to follow it and to read its results in pages."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.current_job import current_job
from dibs.client.connection.outcome_wait import OutcomeWait, encoded_result
from dibs.client.connection.queue_client import QueueClient
from dibs.client.ticket import Ticket
from dibs.errors import BatchClosed, ConfigurationError, DibsError, JobAbsent, NotRunning
from dibs.flow.batch.plan import (
    BATCH_ATTRIBUTE,
    CLOSED_ATTRIBUTE,
    SEALED_ATTRIBUTE,
    BatchSummary,
    batch_of_segment,
    decode_summary,
    find_reservations,
    segment_id,
)
from dibs.flow.batch.segments import MAX_SEGMENT_BYTES, PRODUCERS, AnotherBatch, SegmentCutter
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan, decode_plan, node_id
from dibs.flow.running.ending import CANCEL_ATTRIBUTE, wake_up
from dibs.model.job import Error, Outcome, Slot
from dibs.model.requests import JobPatch
from dibs.model.results import CancelStatus
from dibs.model.wakeup import FLOW_ATTRIBUTE, FLOWS, Hint
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.client.sync.flow import BlockingStoredBatch

#: The members of one read. Each result may have 1 MiB.
PAGE: Final = 200


class MemberResult(Struct, frozen=True, kw_only=True):
    """The end of one member of a batch."""

    queue: str
    """Name of the queue."""
    id: str
    """Id of the job."""
    state: Literal["completed", "failed", "cancelled", "lost"]
    """"completed", "failed", "cancelled", or "lost": the outcome is not kept."""
    result: Any = None
    """Result of a completed member, as the return type of its task."""
    error: Error | None = None
    """Error of a failed member, or the reason of a cancellation."""


async def read_results(
    context: FlowContext, client: QueueClient, ticket: Ticket[Any]
) -> AsyncIterator[MemberResult]:
    """Wait for the end of a batch and yield its members, in the order in which they were enqueued.

    Raises OutcomeNotKept if the outcome of the batch is not kept any more, JobFailed for a damaged batch.
    """
    state = await OutcomeWait(client, ticket.id, ticket.revision, None).wait_for_end()
    (slot,) = await (await client.bounded_storage()).get(FLOWS, [ticket.id])
    outcome = slot.outcome
    if outcome is None or not outcome.first <= ticket.revision <= outcome.revision:
        # Raises, unless the outcome has expired since.
        encoded_result(client, ticket.id, ticket.revision, state)
        return
    async for id, segment in _read_segments(client, ticket.id, outcome):
        async for result in _read_members(context, client, id, segment):
            yield result


async def _read_segments(
    client: QueueClient, batch_id: str, batch: Outcome
) -> AsyncIterator[tuple[str, Outcome]]:
    """Yield each segment with its id. Segments of several producers come in the order of their revisions."""
    storage = await client.bounded_storage()

    async def next_head(producer: str, numbers: Iterator[int]) -> None:
        for number in numbers:
            id = segment_id(batch_id, batch.first, producer, number)
            (slot,) = await storage.get(FLOWS, [id])
            if slot.outcome is not None:
                heappush(heads, (slot.outcome.revision, id, producer, numbers))
                return

    heads: list[tuple[int, str, str, Iterator[int]]] = []
    for producer, reserved in find_reservations(batch.kept_attributes).items():
        await next_head(producer, iter(range(reserved.segments)))
    while heads:
        _, id, producer, numbers = heappop(heads)
        # Read again: the segments of many producers together may be large.
        (slot,) = await storage.get(FLOWS, [id])
        if slot.outcome is not None:
            yield id, slot.outcome
        await next_head(producer, numbers)


async def _read_members(
    context: FlowContext, client: QueueClient, id: str, segment: Outcome
) -> AsyncIterator[MemberResult]:
    if segment.data is None:
        return
    plan = decode_plan(segment.data.payload)
    storage = await client.bounded_storage()
    for begin in range(0, len(plan.nodes), PAGE):
        numbers = range(begin, min(begin + PAGE, len(plan.nodes)))
        ids = {number: node_id(plan, id, segment.first, number) for number in numbers}
        slots = await _read_slots(storage, plan, ids)
        for number, slot in slots.items():
            yield _member_result(context, plan.queue_of(number), ids[number], slot.outcome, segment)


async def _read_slots(storage: Storage, plan: Plan, ids: dict[int, str]) -> dict[int, Slot]:
    """Return the slots of members, in the order of `ids`."""
    by_queue: dict[str, list[int]] = {}
    for number in ids:
        by_queue.setdefault(plan.queue_of(number), []).append(number)
    slots: dict[int, Slot] = {}
    for queue, numbers in by_queue.items():
        found = await storage.get(queue, [ids[number] for number in numbers])
        slots.update(zip(numbers, found, strict=True))
    return {number: slots[number] for number in ids}


def _member_result(
    context: FlowContext, queue: str, id: str, outcome: Outcome | None, segment: Outcome
) -> MemberResult:
    if outcome is None:  # a cancelled segment has members that were never enqueued
        return MemberResult(queue=queue, id=id, state="cancelled" if segment.kind == "cancelled" else "lost")
    result = None if outcome.result is None else context.decoder_of(queue)(outcome.result)
    return MemberResult(queue=queue, id=id, state=outcome.kind, result=result, error=outcome.error)


class StoredBatch:
    """A batch in the storage, by its id; returned by `app.get_batch(id)`."""

    def __init__(self, context: FlowContext, id: str) -> None:
        self._context = context
        self._client = context.flows
        self.id: str = id
        """Id of the batch."""

    def __repr__(self) -> str:
        return f"<StoredBatch {self.id!r}>"

    @property
    def sync(self) -> BlockingStoredBatch:
        """This batch with blocking methods, for code without an event loop."""
        from dibs.client.sync.flow import BlockingStoredBatch  # noqa: PLC0415 - see StoredQueue.sync

        return BlockingStoredBatch(self)

    async def enqueue_many(self, jobs: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]]) -> int:
        """Add jobs, made with `task.bind(...)`, to the open batch, and return their number.

            number = await app.get_batch("mailing-7").enqueue_many([send.bind("cy@example.org")])

        The jobs are enqueued in segments of up to 1,000. `jobs` may be of any length, because only one
        segment is in memory at a time. An accepted segment runs to its end, whatever happens to this process.

        A handler of a member may add members until it returns. All other programs may add them until the
        batch is closed.

        Raises BatchClosed if the batch gets no further members, Refused with the index of a job that is not
        allowed, OutcomeUnknown, StorageError. A note of the error says how many jobs were enqueued before.
        """
        opened = await self._client.storage_handle.ensure_open()
        cutter = SegmentCutter(self._context, min(MAX_SEGMENT_BYTES, opened.limits.payload // 2))
        member, added = _find_batch_id() == self.id, 0
        try:
            async for plan in cutter.cut(jobs):
                await self._add(plan, member=member)
                added += len(plan.nodes)
        except DibsError as error:
            error.add_note(f"{added:,} jobs were added to the batch {self.id!r} before this error")
            raise
        return added

    async def _add(self, plan: Plan, *, member: bool) -> None:
        opened = await self._client.storage_handle.ensure_open()
        producer = await PRODUCERS.get(opened, self.id)
        try:
            return await producer.add(plan, member=member)
        except AnotherBatch:
            producer = await PRODUCERS.get(opened, self.id, fresh=True)
        try:
            await producer.add(plan, member=member)
        except AnotherBatch:
            raise BatchClosed(f"the batch {self.id!r} ended while members were added") from None

    async def close(self) -> bool:
        """Close the batch: only its own members add further members, and it ends with the last of them.

            is_open = await app.get_batch("mailing-7").close()

        Return whether the batch is known and has not ended.
        """
        storage = await self._client.bounded_storage()
        (slot,) = await storage.get(FLOWS, [self.id])
        if slot.current is None:
            return False
        await storage.amend(FLOWS, self.id, JobPatch(attributes={CLOSED_ATTRIBUTE: b"true"}))
        await wake_up(storage, self.id, Hint(token="close"))  # noqa: S106 - no password
        return True

    async def cancel(self) -> CancelStatus:
        """Close the batch and cancel its members that have not ended. `on_finish` runs, and the batch ends
        as cancelled.

            effect = await app.get_batch("mailing-7").cancel()

        Returns "requested", the kind of the end of an ended batch, or "not_found".
        """
        storage = await self._client.bounded_storage()
        (slot,) = await storage.get(FLOWS, [self.id])
        if slot.current is None:
            return "not_found" if slot.outcome is None else slot.outcome.kind
        names = (CANCEL_ATTRIBUTE, CLOSED_ATTRIBUTE, SEALED_ATTRIBUTE)
        await storage.amend(FLOWS, self.id, JobPatch(attributes=dict.fromkeys(names, b"true")))
        await wake_up(storage, self.id, Hint(token="cancel"))  # noqa: S106 - no password
        return "requested"

    async def ticket(self) -> Ticket[BatchSummary]:
        """Return the ticket of the batch, whose result is the summary. Raises JobAbsent for an unknown id."""
        slot = await self._client.get(self.id)
        part = slot.current or slot.outcome
        if part is None:
            raise JobAbsent(queue=FLOWS, id=self.id)
        return Ticket(self._client, self.id, part.revision, decode_summary)

    async def progress(self) -> AsyncIterator[BatchSummary]:
        """Yield the summary of the members so far, each time it was noted, until the batch has ended.

        Use it as `async for summary in batch.progress():`. Raises JobAbsent, StorageError.
        """
        async for value in (await self.ticket()).progress():
            yield msgspec.convert(value, BatchSummary)

    async def results(self) -> AsyncIterator[MemberResult]:
        """Wait for the end of the batch, then yield the result or the error of each member.

        Use it as `async for result in batch.results():`. The order is that of their enqueues. The outcomes of
        members are kept for `keep` after their ends. Raises JobAbsent, StorageError.
        """
        ticket = await self.ticket()
        async for result in read_results(self._context, self._client, ticket):
            yield result


def current_batch_id() -> str:
    """Return the id of the batch of the running job. Raises ConfigurationError for another job."""
    attributes = current_job().attributes
    callback_of = attributes.get(BATCH_ATTRIBUTE)
    if (id := callback_of if isinstance(callback_of, str) else _find_batch_id()) is None:
        raise ConfigurationError(
            "the running job is no member of a batch; pass the id of the batch to get_batch"
        )
    return id


def _find_batch_id() -> str | None:
    """Return the id of the batch that the running job is a member of; None for another job."""
    try:
        segment = current_job().attributes.get(FLOW_ATTRIBUTE)
    except NotRunning:
        return None
    return batch_of_segment(segment) if isinstance(segment, str) else None
