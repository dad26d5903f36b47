"""The stored form of steps: the memo with their results, and the keys of steps for other systems.

A memo is MessagePack: {"version": 1, "steps": {name: result}}. The serde of the handler encodes each result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from dibs.client.calls.task_payload import PayloadMismatch
from dibs.model.check_values import check_text
from dibs.model.job import Job

#: The version of the format of a memo.
MEMO_VERSION: Final = 1
#: Longest name of a step, in bytes of UTF-8.
NAME_BYTES: Final = 128


class Memo(Struct):
    """The content of a memo."""

    version: int
    steps: dict[str, bytes]


class _Header(Struct):
    version: int


def encode_memo(results: Mapping[str, bytes]) -> bytes:
    """Return the memo with these results, each encoded, by the name of its step."""
    return msgspec.msgpack.encode(Memo(version=MEMO_VERSION, steps=dict(results)))


def decode_memo(memo: bytes | None) -> dict[str, bytes]:
    """Return the encoded results of a memo by the names of their steps; {} without a memo.

    Raises PayloadMismatch for another format: a worker with the code that fits tries the job again.
    """
    if not memo:
        return {}
    try:
        version = msgspec.msgpack.decode(memo, type=_Header).version
        if version == MEMO_VERSION:
            return msgspec.msgpack.decode(memo, type=Memo).steps
    except ValueError as error:
        raise PayloadMismatch(f"the memo of the job was not written by job.step: {error}") from error
    raise PayloadMismatch(
        f"the memo of the job has version {version}, and this dibs reads version {MEMO_VERSION}; run the job "
        "on a worker with a newer dibs"
    )


def step_key(queue: str, job: Job, name: str) -> str:
    """Return the idempotency key of a step: a digest of queue, id, `first`, payload and name, 32 hex digits.

    `first` is the revision of the oldest enqueue that the job covers. It stays the same in all runs of the
    job, and no other job of the id has it. Another payload is other work, so it has other keys.
    """
    import hashlib  # noqa: PLC0415 - hashlib loads OpenSSL, which only this function needs

    check_text("name", name, NAME_BYTES)
    parts = msgspec.msgpack.encode((queue, job.id, job.first, job.data.payload, name))
    return hashlib.blake2b(parts, digest_size=16).hexdigest()
