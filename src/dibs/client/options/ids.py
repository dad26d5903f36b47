"""Ids: generated ones sort by time, content ids are the same for the same data."""

from __future__ import annotations

import os
import random
import threading
import time
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from dibs.client.options.serde import enc_hook

#: Crockford's base 32, in which text sorts as its numbers do.
LETTERS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [first + second for first in LETTERS for second in LETTERS]
#: How many ids a ms has room for, each numbered by two letters; a burst of more borrows from the next ms.
ROOM: Final = len(_PAIRS)


class _Ms(NamedTuple):
    """What all ids of a ms have in common, and how many of them there are."""

    at: int
    drawn: count[int]
    head: str
    tail: str


class _Clock:
    """ULIDs that never go back within a process: 48 bits of ms, 10 of a number, 70 of chance.

    Not UUIDs, which write as much in 36 letters: a storage keeps an id in several places for each job, and
    in each event. The chance is drawn anew for each ms and not for each id, which took more than all the
    rest: within a process the number tells ids apart, and two share a ms and its chance once in 2**70.
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
                return f"{head}{_PAIRS[number]}{tail}"
            with self._lock:
                if self._now.at == at:
                    self._now = self._drawn(max(now, at + 1))

    def _drawn(self, at: int) -> _Ms:
        return _Ms(at, count(), _written(at, 5), _written(self._random.getrandbits(70), 7))


def _written(number: int, pairs: int) -> str:
    return "".join([_PAIRS[number >> 10 * place & 1023] for place in reversed(range(pairs))])


new_id = _Clock().next


def content_id(data: Any) -> str:
    """Return an id that is the same for equal data, whatever the order of keys: 32 hex digits.

    With it as the id, equal work that is not yet done is done once. Raises TypeError for what has no JSON.
    """
    import hashlib  # noqa: PLC0415 - brings OpenSSL's list of digests, which nothing else here needs

    raw = msgspec.json.encode(data, enc_hook=enc_hook, order="deterministic")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
