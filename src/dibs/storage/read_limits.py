"""A limit for the time that a server works on a read, for callers that stop waiting, such as the dashboard.

A caller that gives up leaves its statement to the server, which would work on it to the end. A storage whose
server can end a statement by itself obeys the limit; the others ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Seconds after which the server of a storage ends a read of this context; None for no limit.
read_limit: ContextVar[float | None] = ContextVar("dibs_read_limit", default=None)


@contextmanager
def limited_reads(seconds: float) -> Iterator[None]:
    """Limit the reads in a `with` block."""
    token = read_limit.set(seconds)
    try:
        yield
    finally:
        read_limit.reset(token)
