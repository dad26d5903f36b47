"""The payload, the attributes and the ids of a batch job; its memo, with the segments that its
evaluations have counted; and its summary, which is the result of its ticket and its progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from attrs import frozen
from msgspec import Struct

from dibs.client.options.arguments import DEFAULT_OPEN_FOR
from dibs.flow.plan import CANCELLED, DEFAULT_KEEP_MS, FAILED, LOST, SKIPPED, Plan, base36, is_completed
from dibs.model.job import Error, Slot

#: The longest id of a batch, in bytes. The ids of its members are longer, and have at most 512 bytes.
MAX_BATCH_ID: Final = 440
#: Ms without a new segment after which an open batch is closed, by default: 1 hour.
DEFAULT_OPEN_FOR_MS: Final = round(DEFAULT_OPEN_FOR * 1000)
#: The attribute of a batch job and of its callbacks: the id of the batch.
BATCH_ATTRIBUTE: Final = "dibs.batch"
#: The attribute of a batch to which only its own members add further members.
CLOSED_ATTRIBUTE: Final = "dibs.closed"
#: The attribute of a batch that gets no further members: all members have ended, or it is cancelled.
SEALED_ATTRIBUTE: Final = "dibs.sealed"
#: The attribute of a batch with a member that did not complete.
FAILED_ATTRIBUTE: Final = "dibs.failed"
#: The attribute of a batch that was closed because no producer added members for `open_for`.
LOST_ATTRIBUTE: Final = "dibs.producer_lost"
#: The attribute of a callback: the summary of the batch.
SUMMARY_ATTRIBUTE: Final = "dibs.summary"
#: The prefix of the attributes in which producers reserve segments, one attribute per producer.
PRODUCER_PREFIX: Final = "dibs.p."

#: The names of the callbacks.
ON_SUCCESS: Final = "on_success"
ON_FINISH: Final = "on_finish"
ON_FIRST_FAILURE: Final = "on_first_failure"


class BatchPlan(Struct, omit_defaults=True, kw_only=True, tag="batch", tag_field="kind"):
    """The payload of a batch job."""

    #: The callbacks by name. Each is a plan with one node.
    callbacks: dict[str, Plan] = {}
    #: Ms for which the outcomes of members are kept at least; None for ever.
    keep: int | None = DEFAULT_KEEP_MS
    #: Ms without a new segment after which an open batch is closed.
    open_for: int = DEFAULT_OPEN_FOR_MS


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(BatchPlan)


def encode_batch_plan(plan: BatchPlan) -> bytes:
    """Return the plan as the payload of a batch job."""
    return _encoder.encode(plan)


def decode_batch_plan(raw: bytes) -> BatchPlan:
    """Return a stored plan. Raises ValueError."""
    return _decoder.decode(raw)


def is_batch(attributes: Mapping[str, bytes]) -> bool:
    """Return whether a job of the queue `dibs.flows` is a batch."""
    return BATCH_ATTRIBUTE in attributes


def is_set(attributes: Mapping[str, bytes], name: str) -> bool:
    return attributes.get(name) == b"true"


def is_open_for(attributes: Mapping[str, bytes], *, member: bool) -> bool:
    """Return whether members can be added: by a running member of the batch, or by another program."""
    return not is_set(attributes, SEALED_ATTRIBUTE) and (member or not is_set(attributes, CLOSED_ATTRIBUTE))


class Reserved(NamedTuple):
    """The segments that one producer has reserved. Their numbers begin at 0."""

    segments: int = 0
    #: The members of these segments.
    members: int = 0


_reserved_decoder: Final = msgspec.json.Decoder(Reserved)


def find_reservations(attributes: Mapping[str, bytes]) -> dict[str, Reserved]:
    """Return the reservations in the attributes of a batch job, by producer in a fixed order."""
    return {
        name.removeprefix(PRODUCER_PREFIX): _reserved_decoder.decode(attributes[name])
        for name in sorted(attributes)
        if name.startswith(PRODUCER_PREFIX)
    }


def segment_id(batch_id: str, stamp: int, producer: str, number: int) -> str:
    """Return the id of a segment. `stamp` keeps two batches with the same id apart."""
    return f"{batch_id}/{base36(stamp)}/{producer}.{number}"


def callback_id(batch_id: str, stamp: int, name: str) -> str:
    return f"{batch_id}/{base36(stamp)}/{name}"


def batch_of_segment(segment: str) -> str | None:
    """Return the id of the batch of a segment; None for the id of a flow that is no segment."""
    id, *rest = segment.rsplit("/", 2)
    return id if len(rest) == 2 and "." in rest[1] else None


class MemberCounts(Struct, omit_defaults=True):
    """Numbers of members, by their state."""

    members: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    #: Members that ended, and whose outcomes were not kept.
    lost: int = 0

    def __add__(self, other: MemberCounts) -> MemberCounts:
        return MemberCounts(
            self.members + other.members,
            self.completed + other.completed,
            self.failed + other.failed,
            self.cancelled + other.cancelled,
            self.lost + other.lost,
        )


def count_notes(notes: list[int]) -> MemberCounts:
    """Return the counts of the nodes of an ended segment, by their notes."""
    completed = sum(map(is_completed, notes))
    cancelled = notes.count(CANCELLED) + notes.count(SKIPPED)
    return MemberCounts(len(notes), completed, notes.count(FAILED), cancelled, notes.count(LOST))


class BatchMemo(Struct, array_like=True):
    """The memo of a batch job."""

    #: The sum of the counted segments.
    counts: MemberCounts = msgspec.field(default_factory=MemberCounts)
    #: For each producer, the number of its first segments that are counted.
    counted: dict[str, int] = {}
    #: The number of reserved segments that was seen last.
    reserved: int = 0
    #: When that number was first seen, in ms since the epoch.
    reserved_at: int = 0
    #: When the batch was first seen closed, in ms since the epoch; 0 for an open batch.
    closed_at: int = 0
    #: True after `on_first_failure` was enqueued.
    has_failed: bool = False
    #: True after all segments of a cancelled batch were cancelled.
    is_cancelled: bool = False


_memo_encoder: Final = msgspec.msgpack.Encoder()
_memo_decoder: Final = msgspec.msgpack.Decoder(BatchMemo)


def encode_batch_memo(memo: BatchMemo) -> bytes:
    return _memo_encoder.encode(memo)


def decode_batch_memo(raw: bytes | None) -> BatchMemo:
    """Return a stored memo; an empty one for None. Raises ValueError."""
    return BatchMemo() if raw is None else _memo_decoder.decode(raw)


class BatchSummary(Struct, frozen=True, kw_only=True):
    """The numbers of members of a batch, by their state."""

    members: int = 0
    """Number of members that were added, including missing ones."""
    completed: int = 0
    """Number of members that completed."""
    failed: int = 0
    """Number of members that failed."""
    cancelled: int = 0
    """Number of members that were cancelled."""
    lost: int = 0
    """Number of members that ended, and whose outcomes were not kept long enough to be counted."""
    missing: int = 0
    """Number of members whose enqueue was begun and never happened, because their producer was killed."""
    open: int = 0
    """Number of members that have not ended; 0 at the end of the batch."""
    producer_lost: bool = False
    """True if the batch was closed because its producer did not close it."""

    @property
    def has_failure(self) -> bool:
        """True if a member has ended without completing, or is missing."""
        return bool(self.failed or self.cancelled or self.lost or self.missing)

    @property
    def is_success(self) -> bool:
        """True if all members have completed, and their producer closed the batch."""
        return self.completed == self.members and not self.producer_lost


decode_summary: Final = msgspec.json.Decoder(BatchSummary).decode


@frozen
class BatchStatus:
    """The state of a batch, and the numbers of its members: None before the first report."""

    id: str
    state: str
    summary: BatchSummary | None
    error: Error | None
    enqueued_at: int | None
    ended_at: int | None


def flow_attributes(slot: Slot) -> Mapping[str, bytes]:
    """Return the attributes of a flow or a batch, also after its end."""
    if slot.current is not None:
        return slot.current.data.attributes
    return {} if slot.outcome is None else slot.outcome.kept_attributes


def find_batch(id: str, slot: Slot) -> BatchStatus | None:
    """Return the status of a batch; None for another job."""
    if not is_batch(flow_attributes(slot)):
        return None
    if (job := slot.current) is not None:
        state = "waiting" if job.run is None else "handed_off" if job.run.lease is None else "active"
        progress = None if job.run is None else job.run.progress
        return BatchStatus(id, state, _decode_known(progress), job.error, job.enqueued_at, None)
    outcome = slot.outcome
    assert outcome is not None  # noqa: S101 - a slot with attributes has a job or an outcome
    summary = _decode_known(outcome.result)
    return BatchStatus(id, outcome.kind, summary, outcome.error, outcome.enqueued_at, outcome.ended_at)


def _decode_known(raw: bytes | None) -> BatchSummary | None:
    return None if raw is None else decode_summary(raw)
