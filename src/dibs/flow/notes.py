"""Notes: the state of each node, as the memo of the flow job keeps it.

A note is one whole number per node, because a flow of 10,000 nodes writes all of them together.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: The node is not enqueued yet.
WAITING: Final = 0
COMPLETED: Final = 1
FAILED: Final = 2
CANCELLED: Final = 3
#: The node has ended, and its outcome was not kept long enough to be read.
LOST: Final = 4
#: The node never runs, because a parent did not complete.
SKIPPED: Final = 5
#: The names of the states above, by note.
STATE_NAMES: Final = ("waiting", "completed", "failed", "cancelled", "lost", "skipped")
#: The note of an open node is its revision plus this number. The revisions of a manual clock may be small.
_OPEN: Final = 16


def open_note(revision: int) -> int:
    """Return the note of a node that was enqueued with this revision."""
    return revision + _OPEN


def completed_note(revision: int) -> int:
    """Return the note of a completed node whose job id other enqueues may use, too.

    It keeps the revision, because the outcome of the id may later be that of another enqueue.
    """
    return -revision


def is_open(note: int) -> bool:
    """Return whether the node is enqueued and has not ended."""
    return note > _OPEN


def is_ended(note: int) -> bool:
    """Return whether the node has ended or is skipped."""
    return note <= _OPEN and note != WAITING


def is_completed(note: int) -> bool:
    """Return whether the node has completed."""
    return note == COMPLETED or note < 0


def revision_of(note: int) -> int | None:
    """Return the revision that a note keeps: that of an open node, or of `completed_note`; else None."""
    if note > _OPEN:
        return note - _OPEN
    return -note if note < 0 else None


def state_name(note: int) -> str:
    """Return the name of the state; "open" for a node that is enqueued."""
    if note < 0:
        return "completed"
    return STATE_NAMES[note] if note < len(STATE_NAMES) else "open"


class Memo(msgspec.Struct, array_like=True):
    """The memo of a flow job."""

    #: The first revision of the flow when it was first evaluated. The ids of its nodes contain it.
    stamp: int
    #: The revision of the flow that wrote these notes. A retry of the flow has another one.
    revision: int
    #: One note per node.
    notes: list[int]
    #: The error texts of nodes that failed without a run, by number.
    errors: dict[int, str] = {}


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Memo)


def encode_memo(memo: Memo) -> bytes:
    """Return the memo as bytes."""
    return _encoder.encode(memo)


def decode_memo(raw: bytes) -> Memo:
    """Return a stored memo. Raises ValueError."""
    return _decoder.decode(raw)
