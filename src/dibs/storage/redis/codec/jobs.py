"""Encoding and decoding of jobs as records, the byte strings that the Lua scripts store.

job_record.lua, attributes.lua and settle_one.lua (for the origin) in storage/redis/lua/include document the
layouts. Each function `encode_...` returns bytes, and `decode_...` converts them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812 - it is an exception class
from typing import Final

from msgspec.msgpack import Decoder, Encoder

from dibs.model.job import ActiveRun, Error, Job, Origin, Outcome
from dibs.model.plain_values import to_plain
from dibs.storage.redis.codec.data import (
    NO_PAYLOADS,
    decode_attributes,
    decode_data,
    encode_attributes,
    encode_data,
    read_sized,
    with_size,
)

LONG, ACTIVE, ERROR, ORIGIN, PROGRESS, LISTED, CANCEL_REQUESTED, HANDED_OFF = 1, 2, 4, 8, 16, 32, 64, 128
#: The flags of the form `claimed` (storage/redis/lua/include/job_record.lua).
CLAIMED: Final = ACTIVE | LISTED

_HEAD: Final = Layout(">BhQQ")
_TIME: Final = Layout(">Q")
_LONG: Final = Layout(">QQIIIII")
_RUN: Final = Layout(">QQ32s")
_SIZE: Final = Layout(">I")
#: Position of the holder in the form `claimed`.
_RUN_SIZE: Final = 1 + _RUN.size + _SIZE.size
_ORIGIN: Final = Layout(">QQQIIIIQ")

encode_error: Final = Encoder(enc_hook=to_plain).encode
decode_error: Final = Decoder(Error).decode


class UnreadableRecord(Exception):
    """Raised for a stored record that cannot be decoded: its part of the queue, and its id."""

    def __init__(self, part: str, id: str) -> None:
        super().__init__(f"{part} {id!r}")
        self.part, self.id = part, id


#: The errors that the decoding of a damaged record may raise. The errors of struct are no ValueErrors.
DECODE_ERRORS: Final = (LayoutError, ValueError, LookupError, TypeError, AssertionError)


def encode_job(job: Job) -> bytes:
    """Return the record of a job, with all fields. The scripts also write shorter records."""
    run = job.run
    flags = LONG | (ACTIVE if run else 0)
    flags |= (ERROR if job.error is not None else 0) | (ORIGIN if job.origin is not None else 0)
    if run is not None:
        flags |= (PROGRESS if run.progress is not None else 0) | (
            CANCEL_REQUESTED if run.cancel_requested else 0
        )
        flags |= HANDED_OFF if run.lease is None else 0
    parts = [encode_head(flags, job, job.data.priority)]
    if run is not None:
        parts.append(encode_run(run.fence, run.claimed_at, run.lease, run.holder))
    if job.error is not None:
        parts.append(with_size(encode_error(job.error)))
    if job.origin is not None:
        parts.append(with_size(encode_origin(job.origin)))
    if run is not None and run.progress is not None:
        parts.append(with_size(run.progress))
    return b"".join((*parts, encode_data(job.data)))


def encode_run(fence: int, claimed_at: int, lease: str | None, holder: str) -> bytes:
    raw = (lease or "").encode()
    # A lease of another storage may have another length. Zero bytes match no lease, and the import releases
    # the job.
    return _RUN.pack(fence, claimed_at, raw if len(raw) == 32 else bytes(32)) + with_size(holder.encode())


def encode_head(flags: int, job: Job | Outcome, priority: int) -> bytes:
    """Pack the head of a job or an outcome: flags, numbers, times and counts, without its run."""
    seq = job.seq if isinstance(job, Job) else job.revision
    return (
        _HEAD.pack(flags, priority, seq, job.run_at)
        + _TIME.pack(job.enqueued_at)
        + _LONG.pack(
            job.first, job.revision, job.enqueues, job.attempts, job.retries, job.stalls, job.timeouts
        )
    )


class Head:
    """The fields in the head of a record, unpacked. `end` is the position after the head."""

    __slots__ = (
        "attempts", "claimed_at", "end", "enqueued_at", "enqueues", "fence", "first", "flags", "holder",
        "lease", "priority", "retries", "revision", "run_at", "seq", "stalls", "timeouts",
    )  # fmt: skip

    def __init__(self, raw: bytes, at: int = 0) -> None:
        self.flags, self.priority, self.seq, self.run_at = _HEAD.unpack_from(raw, at)
        self.enqueued_at = self.run_at
        at += 19
        if self.flags & (LONG | LISTED) != LISTED:
            (self.enqueued_at,) = _TIME.unpack_from(raw, at)
            at += 8
        if self.flags & LONG:
            (
                self.first, self.revision, self.enqueues,
                self.attempts, self.retries, self.stalls, self.timeouts,
            ) = _LONG.unpack_from(raw, at)  # fmt: skip
            at += 36
        else:
            self.first = self.revision = self.seq
            self.enqueues, self.attempts, self.retries, self.stalls, self.timeouts = 1, 0, 0, 0, 0
        if self.flags & ACTIVE:
            self.fence, self.claimed_at, lease = _RUN.unpack_from(raw, at)
            holder, at = read_sized(raw, at + 48)
            self.lease, self.holder = lease.decode(), holder.decode()
        else:
            self.fence, self.claimed_at, self.lease, self.holder = 0, None, "", ""
        self.end = at


def decode_job(id: str, raw: bytes, payloads: Iterator[bytes] = NO_PAYLOADS) -> Job:
    """Return the job of a record. `payloads` has the next payloads to which the records of a claim refer."""
    if raw[0] == CLAIMED:
        return _decode_claimed(id, raw, payloads)
    head = Head(raw)
    _check_head(head)
    flags, at = head.flags, head.end
    error = origin = progress = None
    if flags & ERROR:
        part, at = read_sized(raw, at)
        error = decode_error(part)
    if flags & ORIGIN:
        part, at = read_sized(raw, at)
        origin = decode_origin(part)
    if flags & PROGRESS:
        progress, at = read_sized(raw, at)
    return Job(
        id=id,
        data=decode_data(raw[at:], head.priority, payloads),
        run_at=head.run_at,
        enqueued_at=head.enqueued_at,
        seq=head.seq,
        first=head.first,
        revision=head.revision,
        enqueues=head.enqueues,
        attempts=head.attempts,
        retries=head.retries,
        stalls=head.stalls,
        timeouts=head.timeouts,
        error=error,
        origin=origin,
        run=_to_active_run(head, progress) if flags & ACTIVE else None,
    )


def _check_head(head: Head) -> None:
    """Raise ValueError for flags and numbers that no job has. check_head in job_record.lua is the same."""
    flags = head.flags
    impossible = (
        flags & (LONG | LISTED) != LONG
        if flags & ACTIVE
        else flags & (PROGRESS | CANCEL_REQUESTED | HANDED_OFF)
    )
    if impossible or (not flags & LONG and head.seq == 0):
        raise ValueError("the record has flags or numbers that no job has")


def _decode_claimed(id: str, raw: bytes, payloads: Iterator[bytes]) -> Job:
    """Decode the form `claimed`: the bytes of the run, then the record of the job as it waited."""
    at = end = _RUN_SIZE + int.from_bytes(raw[_RUN_SIZE - 4 : _RUN_SIZE])
    flags, priority, seq, run_at = _HEAD.unpack_from(raw, at)
    if flags not in (0, LISTED):
        raise ValueError("the record has no waiting job")
    at += 19 if flags else 27
    return Job(
        id=id,
        data=decode_data(raw[at:], priority, payloads),
        run_at=run_at,
        enqueued_at=int.from_bytes(raw[at - 8 : at]),
        seq=seq,
        first=seq,
        revision=seq,
        attempts=1,
        run=_decode_run(raw[1:end]),
    )


@lru_cache(256)
def _decode_run(raw: bytes) -> ActiveRun:
    """Decode the bytes of a run. All jobs of one claim have the same bytes, and so share one ActiveRun."""
    fence, claimed_at, lease = _RUN.unpack_from(raw)
    holder = raw[_RUN.size + _SIZE.size :].decode()
    return ActiveRun(fence=fence, lease=lease.decode(), holder=holder, claimed_at=claimed_at)


def _to_active_run(head: Head, progress: bytes | None) -> ActiveRun:
    assert head.claimed_at is not None  # noqa: S101 - an active job was claimed
    return ActiveRun(
        fence=head.fence,
        lease=None if head.flags & HANDED_OFF else head.lease,
        holder=head.holder,
        claimed_at=head.claimed_at,
        progress=progress,
        cancel_requested=bool(head.flags & CANCEL_REQUESTED),
    )


def encode_origin(origin: Origin) -> bytes:
    queue, id = origin.queue.encode(), origin.id.encode()
    numbers = _ORIGIN.pack(
        origin.revision, origin.fence, origin.enqueued_at,
        origin.attempts, origin.retries, origin.stalls, origin.timeouts, origin.run_at,
    )  # fmt: skip
    return b"".join((
        len(queue).to_bytes(2), queue, len(id).to_bytes(2), id, numbers,
        with_size(encode_attributes(origin.attributes)), encode_error(origin.error),
    ))  # fmt: skip


def decode_origin(raw: bytes) -> Origin:
    at = 2 + int.from_bytes(raw[:2])
    queue = raw[2:at].decode()
    end = at + 2 + int.from_bytes(raw[at : at + 2])
    id = raw[at + 2 : end].decode()
    revision, fence, enqueued_at, attempts, retries, stalls, timeouts, run_at = _ORIGIN.unpack_from(raw, end)
    attributes, at = read_sized(raw, end + _ORIGIN.size)
    return Origin(
        queue=queue,
        id=id,
        revision=revision,
        fence=fence,
        attempts=attempts,
        retries=retries,
        stalls=stalls,
        timeouts=timeouts,
        enqueued_at=enqueued_at,
        error=decode_error(raw[at:]),
        run_at=run_at,
        attributes=decode_attributes(attributes),
    )
