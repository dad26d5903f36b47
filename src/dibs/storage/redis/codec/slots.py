"""Encoding and decoding of slots as bytes: the job of an id, its successor and its outcome.

A successor is a later enqueue that waits until the active run of its id ends. fold.lua, outcomes.lua and
drop_successor.lua in storage/redis/lua/include document the layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct as Layout
from typing import Any, Final

from dibs.model.job import EMPTY, NO_ATTRIBUTES, Outcome, Slot, Successor
from dibs.storage.redis.codec.data import (
    OUTCOME_KINDS,
    decode_attributes,
    decode_data,
    encode_attributes,
    encode_data,
    read_sized,
    with_size,
)
from dibs.storage.redis.codec.jobs import (
    ACTIVE,
    DECODE_ERRORS,
    LONG,
    PROGRESS,
    Head,
    UnreadableRecord,
    decode_error,
    decode_job,
    decode_origin,
    encode_error,
    encode_head,
    encode_job,
    encode_origin,
    encode_run,
)

#: Flags of an outcome in the short form (storage/redis/lua/include/short_outcomes.lua).
KEEPS_PRIORITY, KEEPS_TIME = 16, 64
FOR_EVER, HAS_ERROR, HAS_ORIGIN, HAS_RESULT, HAS_DATA, KEEPS_ATTRIBUTES = 4, 8, 16, 32, 64, 128

_OUTCOME: Final = Layout(">BQQ")
_SUCCESSOR: Final = Layout(">BhQQQQQQQI")
_RANGE: Final = Layout(">QQ")


def encode_successor(successor: Successor) -> bytes:
    flags = successor.replaces | (successor.lo is not None) << 1 | (successor.hi is not None) << 2
    flags |= successor.resets << 3 | (not successor.creates) << 4
    return _SUCCESSOR.pack(
        flags, successor.data.priority, successor.run_at, successor.lo or 0, successor.hi or 0,
        successor.enqueued_at, successor.seq, successor.first, successor.revision, successor.enqueues,
    ) + encode_data(successor.data)  # fmt: skip


def decode_successor(raw: bytes) -> Successor:
    flags, priority, run_at, lo, hi, enqueued_at, seq, first, revision, enqueues = _SUCCESSOR.unpack_from(raw)
    if flags > 31 or not (seq or revision or enqueues):
        raise ValueError("the record is no successor")
    return Successor(
        data=decode_data(raw[_SUCCESSOR.size :], priority),
        replaces=bool(flags & 1),
        run_at=run_at,
        lo=lo if flags & 2 else None,
        hi=hi if flags & 4 else None,
        resets=bool(flags & 8),
        enqueued_at=enqueued_at,
        seq=seq,
        first=first,
        revision=revision,
        enqueues=enqueues,
        creates=not flags & 16,
    )


def encode_outcome(outcome: Outcome) -> bytes:
    flags = OUTCOME_KINDS.index(outcome.kind) + 1
    flags |= FOR_EVER if outcome.expires_at is None else 0
    flags |= (HAS_ERROR if outcome.error is not None else 0) | (
        HAS_ORIGIN if outcome.origin is not None else 0
    )
    flags |= (HAS_RESULT if outcome.result is not None else 0) | (HAS_DATA if outcome.data is not None else 0)
    flags |= KEEPS_ATTRIBUTES if outcome.attributes else 0
    priority = outcome.data.priority if outcome.data else 0
    parts = [_OUTCOME.pack(flags, outcome.ended_at, outcome.expires_at or 0)]
    head_flags = LONG | (0 if outcome.claimed_at is None else ACTIVE)
    head_flags |= 0 if outcome.progress is None else PROGRESS
    parts.append(encode_head(head_flags, outcome, priority))
    if outcome.claimed_at is not None:
        parts.append(encode_run(outcome.fence, outcome.claimed_at, None, outcome.holder))
    if outcome.progress is not None:
        parts.append(with_size(outcome.progress))
    if outcome.error is not None:
        parts.append(with_size(encode_error(outcome.error)))
    if outcome.origin is not None:
        parts.append(with_size(encode_origin(outcome.origin)))
    if outcome.result is not None:
        parts.append(with_size(outcome.result))
    if outcome.attributes:
        parts.append(with_size(encode_attributes(outcome.attributes)))
    return b"".join(parts) + (encode_data(outcome.data) if outcome.data is not None else b"")


def decode_outcome(raw: bytes) -> Outcome:
    if raw[:1] == b"\0":
        return _decode_kept(raw)
    flags, ended_at, expires_at = _OUTCOME.unpack_from(raw)
    if not flags & 3:
        raise ValueError("the record is no outcome")
    head = Head(raw, _OUTCOME.size)
    at, error, origin, result, attributes, progress = head.end, None, None, None, NO_ATTRIBUTES, None
    if head.flags & PROGRESS:
        progress, at = read_sized(raw, at)
    if flags & HAS_ERROR:
        part, at = read_sized(raw, at)
        error = decode_error(part)
    if flags & HAS_ORIGIN:
        part, at = read_sized(raw, at)
        origin = decode_origin(part)
    if flags & HAS_RESULT:
        result, at = read_sized(raw, at)
    if flags & KEEPS_ATTRIBUTES:
        part, at = read_sized(raw, at)
        attributes = decode_attributes(part)
    if not flags & HAS_DATA and at != len(raw):
        raise ValueError("the record has no end")
    return Outcome(
        kind=OUTCOME_KINDS[(flags & 3) - 1],
        fence=head.fence,
        first=head.first,
        revision=head.revision,
        ended_at=ended_at,
        expires_at=None if flags & FOR_EVER else expires_at,
        result=result,
        error=error,
        enqueues=head.enqueues,
        enqueued_at=head.enqueued_at,
        run_at=head.run_at,
        claimed_at=head.claimed_at,
        holder=head.holder,
        attempts=head.attempts,
        retries=head.retries,
        stalls=head.stalls,
        timeouts=head.timeouts,
        data=decode_data(raw[at:], head.priority) if flags & HAS_DATA else None,
        origin=origin,
        attributes=attributes,
        progress=progress,
    )


def _decode_kept(raw: bytes) -> Outcome:
    """Decode an outcome in the short form, as outcome_reply in short_outcomes.lua sends it."""
    kept_class, at = read_sized(raw, 1)
    ages, _, holder = kept_class.decode().partition(",")
    age, _, ahead = ages.partition("+")
    flags, fence, lead = raw[at], int.from_bytes(raw[at + 4 : at + 11]), raw[at + 11]
    claimed_at = fence // 1000 - lead - int(ahead or 0)
    ended_at = claimed_at + int.from_bytes(raw[at + 12 : at + 15])
    at += 17 if flags & KEEPS_PRIORITY else 15
    seq, run_at = int.from_bytes(raw[at : at + 7]), int.from_bytes(raw[at + 7 : at + 15])
    at += 23 if flags & KEEPS_TIME else 15
    enqueued_at = int.from_bytes(raw[at - 8 : at])
    result, end = read_sized(raw, at) if flags & HAS_RESULT else (None, at)
    if end != len(raw) or flags & ~(KEEPS_PRIORITY | KEEPS_TIME | HAS_RESULT):
        raise ValueError("the record is no outcome in the short form")
    return Outcome(
        kind="completed",
        fence=fence,
        first=seq,
        revision=seq,
        ended_at=ended_at,
        expires_at=None if age == "*" else ended_at + int(age),
        result=result,
        enqueued_at=enqueued_at,
        run_at=run_at,
        claimed_at=claimed_at,
        holder=holder,
        attempts=1,
    )


def live_outcome(raw: bytes | None, now: int) -> Outcome | None:
    """Decode an outcome. Return None if `raw` is None or the outcome has expired at the time `now`, ms."""
    outcome = None if raw is None else decode_outcome(raw)
    if outcome is None or (outcome.expires_at is not None and now >= outcome.expires_at):
        return None
    return outcome


def encode_slot(slot: Slot) -> tuple[bytes, bytes, bytes, bytes]:
    """Encode current, successor, outcome and dropped ranges, each as bytes; b"" for an absent part.

    The dropped ranges are the revisions of enqueues whose successor was cancelled.
    """
    return (
        b"" if slot.current is None else encode_job(slot.current),
        b"" if slot.successor is None else encode_successor(slot.successor),
        b"" if slot.outcome is None else encode_outcome(slot.outcome),
        b"".join(_RANGE.pack(*ends) for ends in slot.dropped),
    )


def decode_slot(id: str, parts: list[bytes | None], now: int) -> Slot:
    """Decode a slot from its four parts. Leave out an outcome that has expired at the time `now`, ms."""
    current, successor, ended, dropped = parts
    outcome = live_outcome(ended, now)
    if current is None and outcome is None:
        return EMPTY
    return Slot(
        None if current is None else decode_job(id, current),
        None if successor is None else decode_successor(successor),
        outcome,
        tuple(_RANGE.iter_unpack(dropped)) if dropped else (),
    )


def decode_slots(ids: Sequence[str], reply: list[Any]) -> list[Slot]:
    """Decode the reply of get.lua. Raise UnreadableRecord for the first damaged slot."""
    now, slots = int(reply[0]), []
    for i, id in enumerate(ids):
        try:
            slots.append(decode_slot(id, reply[4 * i + 1 : 4 * i + 5], now))
        except DECODE_ERRORS:
            raise UnreadableRecord("job", id) from None
    return slots


def numbers_of(slot: Slot) -> Iterator[int]:
    """Yield all revisions, seqs and fences of a slot, and 0. An import raises the counter above them."""
    yield 0
    for part in (slot.current, slot.successor, slot.outcome):
        if part is not None:
            yield part.revision
    for waiting in (slot.current, slot.successor):
        if waiting is not None:
            yield waiting.seq
    if slot.current is not None and slot.current.run is not None:
        yield slot.current.run.fence
    if slot.outcome is not None:
        yield slot.outcome.fence
    yield from (last for _, last in slot.dropped)
