"""Encoding and decoding of the data of jobs: payload, attributes, overrides, retention, memo and key.

job_record.lua and attributes.lua in storage/redis/lua/include document the layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from struct import Struct as Layout
from typing import Final

from msgspec import UNSET, UnsetType

from dibs.model.job import NO_ATTRIBUTES, EndKind, JobData, OutcomeRetention
from dibs.model.overrides import pack_overrides, unpack_overrides

OUTCOME_KINDS: Final[tuple[EndKind, ...]] = ("completed", "failed", "cancelled")
KIND_LETTERS: Final[dict[EndKind, str]] = {"completed": "c", "failed": "f", "cancelled": "x"}
KIND_OF_LETTER: Final = {letter: kind for kind, letter in KIND_LETTERS.items()}

#: The flag of data with a retention.
HAS_RETENTION: Final = 4
#: The flag of data with a key.
HAS_KEY: Final = 16
#: The flag of data with a reference to a payload (payloads.lua).
BY_REFERENCE: Final = 32

#: The payloads of records that contain their payloads.
NO_PAYLOADS: Final[Iterator[bytes]] = iter(())

_SIZE: Final = Layout(">I")


def with_size(raw: bytes) -> bytes:
    """Return bytes with their size in front, as 4 bytes."""
    return _SIZE.pack(len(raw)) + raw


def read_sized(raw: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes whose size is at position `at`, and the position after them."""
    start = at + 4
    end = start + int.from_bytes(raw[at:start])
    if end > len(raw):
        raise ValueError("a section of the record is cut")
    return raw[start:end], end


def encode_data(data: JobData, reference: bytes = b"") -> bytes:
    """Pack the data of a job, without its priority: the head of the record has the priority.

    With a `reference` (payloads.lua), it takes the place of the payload.
    """
    if (
        not (data.attributes or reference)
        and data.overrides is None
        and data.retention is None
        and (data.key is None and data.memo is None)
    ):
        return b"\0" + data.payload
    flags, parts = BY_REFERENCE if reference else 0, []
    if data.attributes:
        flags |= 1
        parts.append(with_size(encode_attributes(data.attributes)))
    if data.overrides is not None:
        flags |= 2
        parts.append(with_size(pack_overrides(data.overrides)))
    if data.retention is not None:
        flags |= HAS_RETENTION
        parts.append(with_size(encode_retention(data.retention).encode()))
    if data.memo is not None:
        flags |= 8
        parts.append(with_size(data.memo))
    if data.key is not None:
        flags |= HAS_KEY
        parts.append(with_size(data.key.encode()))
    return b"".join((bytes((flags,)), *parts, reference or data.payload))


def decode_data(raw: bytes, priority: int, payloads: Iterator[bytes] = NO_PAYLOADS) -> JobData:
    """Unpack the data of a job. It takes the payload from `payloads` if it has a reference instead of one."""
    flags, at = raw[0], 1
    if not flags:
        # Pass NO_ATTRIBUTES, because msgspec would create a new default mapping for each Struct.
        return JobData(payload=raw[1:], attributes=NO_ATTRIBUTES, priority=priority)
    if flags >= 2 * BY_REFERENCE:
        raise ValueError("the record has unknown data")
    attributes, overrides, retention, memo, key = NO_ATTRIBUTES, None, None, None, None
    if flags & 1:
        part, at = read_sized(raw, at)
        attributes = decode_attributes(part)
    if flags & 2:
        part, at = read_sized(raw, at)
        overrides = unpack_overrides(part)
    if flags & HAS_RETENTION:
        part, at = read_sized(raw, at)
        retention = decode_retention(part.decode())
    if flags & 8:
        memo, at = read_sized(raw, at)
    if flags & HAS_KEY:
        part, at = read_sized(raw, at)
        key = part.decode()
    payload = next(payloads, None) if flags & BY_REFERENCE else raw[at:]
    if payload is None:
        raise ValueError("the record refers to a payload that was not read")
    return JobData(
        payload=payload,
        attributes=attributes,
        priority=priority,
        overrides=overrides,
        retention=retention,
        key=key,
        memo=memo,
    )


def encode_attributes(attributes: Mapping[str, bytes]) -> bytes:
    return b"".join(with_size(name.encode()) + with_size(value) for name, value in attributes.items())


def decode_attributes(raw: bytes) -> dict[str, bytes]:
    attributes, at = {}, 0
    while at < len(raw):
        name, at = read_sized(raw, at)
        attributes[name.decode()], at = read_sized(raw, at)
    return attributes


@lru_cache(1024)
def encode_retention(retention: OutcomeRetention) -> str:
    """Encode a retention as `completed,failed,cancelled,keep`, as in `3600000,*,,f`.

    An age is in ms, "" for UNSET, or "*" for ever. `keep` has the first letters of the kinds whose payload is
    kept ("x" for cancelled), "" for UNSET, or "-" for no kind.
    """
    parts = [_encode_age(getattr(retention, kind)) for kind in OUTCOME_KINDS]
    keep = retention.keep_payload
    parts.append("" if isinstance(keep, UnsetType) else "".join(KIND_LETTERS[kind] for kind in keep) or "-")
    return ",".join(parts)


def _encode_age(age: int | UnsetType | None) -> str:
    return "" if age is UNSET else "*" if age is None else str(age)


@lru_cache(1024)
def decode_retention(text: str) -> OutcomeRetention:
    *ages, keep = text.split(",")
    completed, failed, cancelled = (UNSET if not age else None if age == "*" else int(age) for age in ages)
    kept = tuple(KIND_OF_LETTER[letter] for letter in keep.strip("-"))
    return OutcomeRetention(
        completed=completed, failed=failed, cancelled=cancelled, keep_payload=kept if keep else UNSET
    )
