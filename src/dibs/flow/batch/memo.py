"""The notes of a batch: the segments that its evaluations have counted, as the memo of the batch job."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from dibs.flow.notes import CANCELLED, FAILED, LOST, SKIPPED, is_completed


class Counts(Struct, omit_defaults=True):
    """Numbers of members, by their state."""

    members: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    #: Members that ended, and whose outcomes were not kept.
    lost: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.members + other.members,
            self.completed + other.completed,
            self.failed + other.failed,
            self.cancelled + other.cancelled,
            self.lost + other.lost,
        )


def count_notes(notes: list[int]) -> Counts:
    """Return the counts of the nodes of an ended segment, by their notes."""
    completed = sum(map(is_completed, notes))
    cancelled = notes.count(CANCELLED) + notes.count(SKIPPED)
    return Counts(len(notes), completed, notes.count(FAILED), cancelled, notes.count(LOST))


class BatchMemo(Struct, array_like=True):
    """The memo of a batch job."""

    #: The sum of the counted segments.
    counts: Counts = msgspec.field(default_factory=Counts)
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


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(BatchMemo)


def encode_batch_memo(memo: BatchMemo) -> bytes:
    """Return the memo as bytes."""
    return _encoder.encode(memo)


def decode_batch_memo(raw: bytes | None) -> BatchMemo:
    """Return a stored memo; an empty one for None. Raises ValueError."""
    return BatchMemo() if raw is None else _decoder.decode(raw)
