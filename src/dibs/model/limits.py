"""The limits of a storage for sizes and numbers (contract 4, Limits)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KIB: Final = 1024
MIB: Final = 1024 * KIB
#: The largest whole number that dibs stores. Lua and JavaScript use floats, which skip numbers beyond 2**53.
SAFE_INTEGER: Final = 2**53
DAY: Final = 86_400_000
#: The cost of one start, and the highest cost of a run, in thousandths of a start.
START_COST: Final = 1000
MOST_COST: Final = 1_000_000_000
#: What a chunk of output counts beside its bytes, in bytes.
CHUNK_OVERHEAD: Final = 64
#: The longest duration (delay, retention, lease, timeout, age) in ms: 100,000 days, about 273 years. Waits of
#: Python threads take at most 292 years (threading.TIMEOUT_MAX).
LONGEST_TIME: Final = 100_000 * DAY
#: The latest run_at, in ms since the epoch: the end of the year 9998 in UTC. The year 9999 is the last one of
#: datetime, so every time zone can show this time.
LATEST_TIME: Final = 253_370_764_799_999


class Limits(Struct, frozen=True, kw_only=True):
    """The largest sizes and numbers that one storage accepts. The defaults are those of the contract."""

    #: The size of a payload, in bytes.
    payload: int = MIB
    #: The size of all attributes of a job together, names included, in bytes.
    attributes: int = 64 * KIB
    #: The size of a result, in bytes.
    result: int = MIB
    #: The size of a progress report, in bytes.
    progress: int = MIB
    #: The size of the texts of an error, in bytes of UTF-8. A longer error is cut.
    error: int = 16 * KIB
    #: The size of an id, in bytes of UTF-8.
    id: int = 512
    #: The size of the name of a queue, in bytes of UTF-8.
    queue: int = 500
    #: The size of a request_key, in bytes of UTF-8.
    request_key: int = 128
    #: The size of a key, in bytes of UTF-8.
    key: int = 128
    #: The size of a memo, in bytes.
    memo: int = MIB
    #: The size of a chunk of output, in bytes.
    chunk: int = 64 * KIB
    #: The number of chunks in a report.
    chunks: int = 1000
    #: The size of the output of an id, in bytes. A chunk counts its bytes and CHUNK_OVERHEAD.
    output: int = MIB
    #: The number of requests in a batch.
    batch: int = 1000
    #: The depth of nested JSON in attributes and progress.
    depth: int = 64
    #: The largest absolute value of a priority.
    priority: int = 1000


#: The default limits, which the contract sets.
LIMITS: Final = Limits()
