"""The size limits of a storage (contract 4, Limits)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KIB: Final = 1024
MIB: Final = 1024 * KIB
#: Beyond 2**53 a float, and so Lua and JavaScript, no longer tells neighbours apart.
SAFE_INTEGER: Final = 2**53
#: The longest time in ms, so that now plus it is still a safe integer.
LONGEST: Final = SAFE_INTEGER // 2


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one storage. What stands here is the contract's; a storage may be opened with others."""

    payload: int = MIB
    attributes: int = 64 * KIB
    result: int = MIB
    progress: int = MIB
    error: int = 16 * KIB
    id: int = 512
    queue: int = 500
    request_key: int = 128
    batch: int = 1000
    depth: int = 64
    priority: int = 1000


LIMITS: Final = Limits()
