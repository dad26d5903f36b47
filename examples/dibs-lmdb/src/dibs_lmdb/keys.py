"""The keys of the LMDB tree. A key begins with a tag, followed by the hash of the queue.

LMDB limits a key to 511 bytes, and the names of queues and ids can be longer. So keys hold hashes of 16
bytes, and the values hold the texts. Hashes also spread the ids evenly, which `split` uses.
"""

from __future__ import annotations

import hashlib

META = b"M"
QUEUE = b"Q"  # queue -> QueueRecord
SLOT = b"S"  # queue, id -> IdRecord
DUE = b"D"  # queue, priority, run_at, seq, id; imported jobs may have the same seq
PAUSED = b"U"  # as DUE, for the jobs of paused keys, which no claim meets
LINE = b"N"  # queue, key, priority, run_at, seq, id; the jobs of DUE, in a queue with `fair` only
TURN = b"R"  # queue, key -> TurnRecord, in a queue with `fair` only
PLACE = b"C"  # queue, place of a turn -> the hash of the key
STATE = b"T"  # queue, state, id
LEASE = b"L"  # queue, lease -> LeaseRecord
LEASE_EXPIRY = b"X"  # queue, time, lease
LEASE_JOB = b"J"  # queue, lease, id -> b"c" if the cancellation of the run is requested
OUTCOME_EXPIRY = b"O"  # queue, time, id -> the kind of the outcome
REQUEST = b"K"  # queue, request key -> RequestRecord
REQUEST_EXPIRY = b"Y"  # queue, time, request key
OUTPUT = b"P"  # queue, id -> Output
EVENTS = b"E"  # queue, number -> LogEntry

HASH = 16
LAST_HASH = b"\xff" * HASH
_MIDDLE = 1 << 63


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH).digest()


def number(value: int) -> bytes:
    """Encode a number so that bytes sort as numbers do, also below 0."""
    return (min(max(value, -_MIDDLE), _MIDDLE - 1) + _MIDDLE).to_bytes(8, "big")


def read_number(key: bytes) -> int:
    return int.from_bytes(key, "big") - _MIDDLE


def priority(value: int) -> bytes:
    """Encode a priority so that a higher one sorts first."""
    return (0x8000 - value).to_bytes(2, "big")
