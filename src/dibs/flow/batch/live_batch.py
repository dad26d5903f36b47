"""A batch that runs, decoded from its job, and the states of its segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec
from attrs import define

from dibs.flow.batch.plan import (
    CLOSED_ATTRIBUTE,
    FAILED_ATTRIBUTE,
    LOST_ATTRIBUTE,
    SEALED_ATTRIBUTE,
    BatchMemo,
    BatchPlan,
    BatchSummary,
    MemberCounts,
    Reserved,
    count_notes,
    decode_batch_memo,
    decode_batch_plan,
    find_reservations,
    is_set,
    segment_id,
)
from dibs.flow.plan import decode_plan
from dibs.flow.running.ending import CANCEL_ATTRIBUTE, NODES_ATTRIBUTE
from dibs.model.job import Job, Outcome, Slot

#: A segment: its producer, and its number.
Segment = tuple[str, int]


@define(eq=False)
class LiveBatch:
    """A handed-off batch job, decoded."""

    id: str
    #: The revision of the batch job.
    revision: int
    #: The first revision of the batch job. The ids of segments and callbacks contain it.
    stamp: int
    fence: int
    plan: BatchPlan
    memo: BatchMemo
    enqueued_at: int
    #: The reservations by producer.
    reserved: Mapping[str, Reserved]
    attributes: Mapping[str, bytes]

    def segment_id(self, segment: Segment) -> str:
        return segment_id(self.id, self.stamp, *segment)

    def uncounted(self, limit: int | None = None) -> list[Segment]:
        """Return the first `limit` segments that are not counted."""
        return list(islice(self._uncounted(), limit))

    def _uncounted(self) -> Iterator[Segment]:
        for producer, reserved in self.reserved.items():
            for number in range(self.memo.counted.get(producer, 0), reserved.segments):
                yield producer, number

    def count(self, segment: Segment, counts: MemberCounts) -> None:
        """Note the end of a segment, the first one of its producer that was not counted."""
        self.memo.counts = self.memo.counts + counts
        self.memo.counted[segment[0]] = segment[1] + 1

    def is_over(self) -> bool:
        """Return whether the batch is closed, and all segments that the last read shows have ended."""
        return self.is_closed and not self.uncounted(1)

    @property
    def is_closed(self) -> bool:
        """True if only members of the batch add further members."""
        return is_set(self.attributes, CLOSED_ATTRIBUTE)

    @property
    def is_sealed(self) -> bool:
        """True if the batch gets no further members."""
        return is_set(self.attributes, SEALED_ATTRIBUTE)

    @property
    def is_cancelled(self) -> bool:
        """True after `cancel` of the stored batch."""
        return is_set(self.attributes, CANCEL_ATTRIBUTE)

    @property
    def has_failed(self) -> bool:
        """True if a member did not complete, as far as this is known."""
        counts = self.memo.counts
        return is_set(self.attributes, FAILED_ATTRIBUTE) or counts.completed < counts.members

    def refresh(self, job: Job) -> None:
        """Take over the attributes of a later read of the batch job."""
        self.attributes = job.data.attributes
        self.reserved = find_reservations(self.attributes)

    def summary(self, open_counts: MemberCounts | None = None) -> BatchSummary:
        """Return the summary with the counted segments and, while the batch runs, the counts of open ones.

        Without `open_counts`, reserved members that are in no segment are missing.
        """
        members = sum(reserved.members for reserved in self.reserved.values())
        counts = self.memo.counts + (open_counts or MemberCounts())
        rest = members - counts.completed - counts.failed - counts.cancelled - counts.lost
        return BatchSummary(
            members=members,
            completed=counts.completed,
            failed=counts.failed,
            cancelled=counts.cancelled,
            lost=counts.lost,
            missing=rest if open_counts is None else 0,
            open=0 if open_counts is None else rest,
            producer_lost=is_set(self.attributes, LOST_ATTRIBUTE),
        )


def decode_live_batch(job: Job) -> LiveBatch:
    """Return the batch of a batch job. Raises ValueError if it cannot be read."""
    attributes = job.data.attributes
    return LiveBatch(
        id=job.id,
        revision=job.revision,
        stamp=job.first,
        fence=0 if job.run is None else job.run.fence,
        plan=decode_batch_plan(job.data.payload),
        memo=decode_batch_memo(job.data.memo),
        enqueued_at=job.enqueued_at,
        reserved=find_reservations(attributes),
        attributes=attributes,
    )


# -- segments ------------------------------------------------------------------------------------------------

_decode_counts = msgspec.json.Decoder(MemberCounts).decode


def is_missing(slot: Slot) -> bool:
    """Return whether a reserved segment was never enqueued."""
    return slot.current is None and slot.outcome is None


def ended_counts(slot: Slot) -> MemberCounts | None:
    """Return the counts of a segment that has ended; None for another one."""
    if slot.current is not None or slot.outcome is None:
        return None
    outcome = slot.outcome
    if outcome.kind == "completed" and outcome.result is not None:
        return _decode_counts(outcome.result)
    return _noted_counts(outcome)


def _noted_counts(outcome: Outcome) -> MemberCounts:
    """Return the counts of a segment that was cancelled, or that could not be read."""
    digits = msgspec.json.decode(outcome.kept_attributes.get(NODES_ATTRIBUTE, b'""'), type=str)
    if digits:
        return count_notes(list(map(int, digits)))
    try:
        members = len(decode_plan(outcome.data.payload).nodes) if outcome.data is not None else 0
    except ValueError:
        members = 0
    is_cancelled = outcome.kind == "cancelled"
    return MemberCounts(
        members, cancelled=members if is_cancelled else 0, lost=0 if is_cancelled else members
    )


def open_counts(slot: Slot) -> MemberCounts:
    """Return the counts of the members of an open segment that have ended, as its evaluation noted last."""
    run = None if slot.current is None else slot.current.run
    if run is None or run.progress is None:
        return MemberCounts()
    return _decode_counts(run.progress)
