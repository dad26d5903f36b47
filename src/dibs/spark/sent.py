"""What became of the rows of a write: of one task, and of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct


class Sent(Struct, kw_only=True):
    """What became of the rows of one task."""

    rows: int = 0
    #: How many rows got each answer of an enqueue.
    statuses: dict[str, int] = {}
    #: How many of these had been enqueued by an earlier attempt, which got that answer.
    repeated: int = 0
    rejected: int = 0


class WriteReport(Struct, frozen=True, kw_only=True):
    """What a write came to. A write that failed has none: what its tasks sent stays enqueued."""

    queue: str
    #: The name under which its rows are known again.
    run: str
    rows: int = 0
    #: How many rows got each answer of an enqueue: queued, updated, blocked, duplicate, completed, failed.
    statuses: dict[str, int] = {}
    #: How many of these were enqueued by an earlier attempt at the same write.
    repeated: int = 0
    #: How many rows were refused, and stand in the rejects.
    rejected: int = 0


def report_of(queue: str, run: str, parts: Sequence[Sent]) -> WriteReport:
    """Return the sum of what the tasks did."""
    statuses: Counter[str] = Counter()
    for part in parts:
        statuses.update(part.statuses)
    return WriteReport(
        queue=queue,
        run=run,
        rows=sum(part.rows for part in parts),
        statuses=dict(sorted(statuses.items())),
        repeated=sum(part.repeated for part in parts),
        rejected=sum(part.rejected for part in parts),
    )
