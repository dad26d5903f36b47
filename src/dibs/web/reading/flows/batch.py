"""The part of the page of a batch: the numbers of its members, its segments and its callbacks."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from dibs.flow.batch.plan import (
    CLOSED_ATTRIBUTE,
    BatchStatus,
    callback_id,
    decode_batch_plan,
    find_reservations,
    flow_attributes,
    is_set,
    segment_id,
)
from dibs.model.job import Slot
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage
from dibs.web.reading.flows.listing import Numbers, flow_numbers, member_numbers
from dibs.web.reading.jobs.job import slot_state

#: Segments that the page reads. Each comes with its plan, up to 1 MiB.
MAX_SEGMENTS: Final = 20


@frozen
class SegmentRow:
    """A segment: a flow of up to 1,000 members."""

    id: str
    state: str
    numbers: Numbers | None


@frozen
class CallbackRow:
    """A callback of a batch, and the state of its job; "nothing" before its enqueue."""

    name: str
    queue: str
    id: str
    state: str


@frozen
class BatchView:
    """The members of a batch. The numbers are None before the first report."""

    numbers: Numbers | None
    #: Number of members that were added, with those of segments that no report has counted.
    reserved: int
    #: True if only members of the batch add further members.
    is_closed: bool
    producer_lost: bool
    #: The latest segments, and the number of all.
    segments: tuple[SegmentRow, ...]
    segment_count: int
    callbacks: tuple[CallbackRow, ...]


async def read_batch(storage: Storage, id: str, slot: Slot, status: BatchStatus) -> BatchView:
    """Return the members of the batch whose job is in `slot`."""
    attributes, summary = flow_attributes(slot), status.summary
    part = slot.current or slot.outcome
    stamp = 0 if part is None else part.first
    reserved = find_reservations(attributes)
    ids = [
        segment_id(id, stamp, producer, number)
        for producer, one in reserved.items()
        for number in range(one.segments)
    ]
    latest = ids[-MAX_SEGMENTS:]
    slots = await storage.get(FLOWS, latest) if latest else ()
    return BatchView(
        numbers=member_numbers(summary),
        reserved=max(sum(one.members for one in reserved.values()), summary.members if summary else 0),
        is_closed=slot.current is None or is_set(attributes, CLOSED_ATTRIBUTE),
        producer_lost=summary is not None and summary.producer_lost,
        segments=tuple(
            SegmentRow(each, slot_state(one), flow_numbers(one))
            for each, one in zip(latest, slots, strict=True)
        ),
        segment_count=len(ids),
        callbacks=await _callbacks(storage, id, stamp, slot),
    )


async def _callbacks(storage: Storage, id: str, stamp: int, slot: Slot) -> tuple[CallbackRow, ...]:
    data = slot.current.data if slot.current is not None else slot.outcome.data if slot.outcome else None
    if data is None:
        return ()
    try:
        plans = decode_batch_plan(data.payload).callbacks
    except ValueError:
        return ()
    rows = []
    for name, plan in plans.items():
        queue, job = plan.queue_of(0), callback_id(id, stamp, name)
        [found] = await storage.get(queue, [job])
        rows.append(CallbackRow(name, queue, job, slot_state(found)))
    return tuple(rows)
