"""Ids: generated ones sort by time, content ids are the same for the same data."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from dibs.client.serde import plain

#: How many ids a ms has room for, each numbered by 12 bits; a burst of more borrows from the next ms.
ROOM: Final = 4096
_DIGITS: Final = "0123456789abcdef"
_PAIRS: Final = [f"{number:02x}" for number in range(256)]


class _Ms(NamedTuple):
    """What all ids of a ms have in common, and how many of them there are."""

    at: int
    drawn: count[int]
    head: str
    tail: str


class _Clock:
    """UUIDs of version 7 that never go back within a process: 48 bits of ms, a number, 62 bits of chance.

    The chance is drawn anew for each ms and not for each id, which took more than all the rest: within a
    process the number tells ids apart, and two processes share a ms and its chance once in 2**62.
    """

    def __init__(self) -> None:
        self._begin(0)
        if hasattr(os, "register_at_fork"):
            # A child that went on in the same ms would draw what its parent draws.
            os.register_at_fork(after_in_child=lambda: self._begin(self._now.at + 1))

    def _begin(self, at: int) -> None:
        self._lock = threading.Lock()
        # Seeded by the system; to ask the system each time costs more.
        self._random = random.Random()  # noqa: S311 - an id has to be unlike others, not secret
        self._now = self._drawn(at)

    def next(self) -> str:
        now = time.time_ns() // 1_000_000
        while True:
            at, drawn, head, tail = self._now
            # Without the lock, for to count is one step of the interpreter.
            if now <= at and (number := next(drawn)) < ROOM:
                return f"{head}{_DIGITS[number >> 8]}{_PAIRS[number & 255]}{tail}"
            with self._lock:
                if self._now.at == at:
                    self._now = self._drawn(max(now, at + 1))

    def _drawn(self, at: int) -> _Ms:
        time, chance = f"{at:012x}", f"{0b10 << 62 | self._random.getrandbits(62):016x}"
        return _Ms(at, count(), f"{time[:8]}-{time[8:]}-7", f"-{chance[:4]}-{chance[4:]}")


new_id = _Clock().next


def content_id(data: Any) -> str:
    """Return an id that is the same for equal data, whatever the order of keys: 32 hex digits.

    With it as the id, equal work that is not yet done is done once. Raises TypeError for what has no JSON.
    """
    raw = msgspec.json.encode(data, enc_hook=plain, order="deterministic")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
