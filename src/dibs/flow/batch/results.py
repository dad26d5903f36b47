"""The results of the members of an ended batch, read in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from heapq import heappop, heappush
from typing import Any, Final, Literal

from msgspec import Struct

from dibs.client.connection.outcome_wait import OutcomeWait, encoded_result
from dibs.client.connection.queue_client import QueueClient
from dibs.client.ticket import Ticket
from dibs.flow.batch.plan import find_reservations, segment_id
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan, decode_plan, node_id
from dibs.model.job import Error, Outcome, Slot
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage

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
