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
    """UUIDs of version 7 that never go back within a process: 48 bits of ms, then a counter, then chance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        # Seeded by the system, also in each fork: to ask the system for each id costs more than the rest.
        self._random = random.Random()  # noqa: S311 - an id has to be unlike others, not secret
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._random.seed)

    def next(self) -> str:
        # 12 random bits of counter room below each ms: a burst counts on, and borrows from the next ms.
        at = (time.time_ns() // 1_000_000) << 12
        with self._lock:
            self._last = tick = max(at, self._last + 1)
        chance = self._random.getrandbits(62)
        number = (tick >> 12) << 80 | 7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | chance
        text = number.to_bytes(16).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


new_id = _Clock().next


def content_id(data: Any) -> str:
    """Return an id that is the same for equal data, whatever the order of keys: 32 hex digits.

    With it as the id, equal work that is not yet done is done once. Raises TypeError for what has no JSON.
    """
    raw = msgspec.json.encode(data, enc_hook=plain, order="deterministic")
    return hashlib.blake2b(raw, digest_size=16).hexdigest()
