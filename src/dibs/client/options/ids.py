"""Job ids: `new_id` generates ids that sort by time, `content_id` derives an id from data."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from dibs.client.options.value_hooks import enc_hook

#: The digits of Crockford's base 32. Encoded text sorts in the order of the encoded numbers.
BASE32_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: Two digits for each number from 0 to 1023.
_DIGIT_PAIRS: Final = [first + second for first in BASE32_DIGITS for second in BASE32_DIGITS]
#: Most ids with the same timestamp. The generator gives further ids the timestamp of the next ms.
MAX_IDS_PER_MS: Final = len(_DIGIT_PAIRS)


class _Millisecond(NamedTuple):
    """The parts that all ids of one millisecond share, and the counter that distinguishes them."""

    #: Ms since the epoch.
    at: int
    #: Counts the ids of this ms from 0.
    numbers: count[int]
    #: The encoded timestamp, 10 digits.
    head: str
    #: The encoded random bits, 14 digits.
    tail: str


class IdGenerator:
    """A generator of ULIDs that increase within a process: 48 bits of ms, 10 of a counter, 70 random.

    A ULID has 26 characters, a UUID 36, and a storage keeps each id in several indexes and in each event.
    The random bits are drawn once per ms, because drawing them for each id took longer than the rest of
    `next`. The counter separates the ids of a process. Two processes draw the same random bits in the same
    ms with a probability of 1 in 2**70.
    """

    def __init__(self) -> None:
        self._reset(0)
        if hasattr(os, "register_at_fork"):
            # A forked child inherits the random state and the counter, and would generate its parent's ids.
            os.register_at_fork(after_in_child=lambda: self._reset(self._current.at + 1))

    def _reset(self, at: int) -> None:
        self._lock = threading.Lock()
        # Seeded by the operating system once; os.urandom for each ms costs more.
        self._random = random.Random()  # noqa: S311 - an id has to be unique, not secret
        self._current = self._start_millisecond(at)

    def next(self) -> str:
        """Return a new id, greater than every id returned before. Safe to call from any thread."""
        now = time.time_ns() // 1_000_000
        while True:
            at, numbers, head, tail = self._current
            # No lock is needed here: the interpreter runs `next` of a count as one step.
            if now <= at and (number := next(numbers)) < MAX_IDS_PER_MS:
                return f"{head}{_DIGIT_PAIRS[number]}{tail}"
            with self._lock:
                if self._current.at == at:
                    self._current = self._start_millisecond(max(now, at + 1))

    def _start_millisecond(self, at: int) -> _Millisecond:
        return _Millisecond(
            at, count(), _encode_base32(at, 5), _encode_base32(self._random.getrandbits(70), 7)
        )


def _encode_base32(number: int, pairs: int) -> str:
    """Return `number` in base 32 with `2 * pairs` digits: (33, 1) gives "11"."""
    return "".join([_DIGIT_PAIRS[number >> 10 * index & 1023] for index in reversed(range(pairs))])


new_id: Callable[[], str] = IdGenerator().next


def content_id(data: Any) -> str:
    """Return an id of 32 hex digits that is equal for equal data; the order of keys makes no difference.

    Pass it as `id=` to enqueue equal work once while it is pending. Raises TypeError if `data` cannot be
    encoded as JSON.
    """
    import hashlib  # noqa: PLC0415 - hashlib loads OpenSSL, which only this function needs

    raw = msgspec.json.encode(data, enc_hook=enc_hook, order="deterministic")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
