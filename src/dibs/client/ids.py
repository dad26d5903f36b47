"""Ids: generated ones sort by time, content ids are the same for the same data."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from typing import Any

import msgspec

from dibs.client.serde import plain


class _Clock:
    """UUIDs of version 7 that never go back within a process: 48 bits of ms, a counter, 62 bits of chance.

    The chance is drawn anew for each ms and not for each id, which took more than all the rest: within a
    process the counter tells ids apart, and two processes share a ms and its chance once in 2**62.
    """

    def __init__(self) -> None:
        self._last = 0
        self._begin()
        if hasattr(os, "register_at_fork"):
            # A child that went on in the same ms would draw what its parent draws.
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # Seeded by the system; to ask the system each time costs more.
        self._random = random.Random()  # noqa: S311 - an id has to be unlike others, not secret
        self._ms, self._head, self._tail = -1, "", ""

    def next(self) -> str:
        # 12 bits of counter below each ms: a burst counts on, and borrows from the next ms.
        at = time.time_ns() // 1_000_000 << 12
        with self._lock:
            self._last = tick = at if at > self._last else self._last + 1
            if tick >> 12 != self._ms:
                self._draw(tick >> 12)
            return f"{self._head}{tick & 0xFFF:03x}{self._tail}"

    def _draw(self, ms: int) -> None:
        """Write down what all ids of a ms have in common."""
        time, chance = f"{ms:012x}", f"{0b10 << 62 | self._random.getrandbits(62):016x}"
        self._ms, self._head, self._tail = ms, f"{time[:8]}-{time[8:]}-7", f"-{chance[:4]}-{chance[4:]}"


new_id = _Clock().next


def content_id(data: Any) -> str:
    """Return an id that is the same for equal data, whatever the order of keys: 32 hex digits.

    With it as the id, equal work that is not yet done is done once. Raises TypeError for what has no JSON.
    """
    raw = msgspec.json.encode(data, enc_hook=plain, order="deterministic")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
