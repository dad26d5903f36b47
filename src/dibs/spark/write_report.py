"""Reports of a write: one per partition, and their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import define, field
from msgspec import Struct


@define(kw_only=True)
class PartitionReport:
    """The result of one task: the number of its rows by enqueue status. Spark pickles it to the driver."""

    rows: int = 0
    #: Enqueue status -> number of rows.
    statuses: Counter[str] = field(factory=Counter)
    #: Rows that an earlier attempt of this task enqueued; `statuses` counts the status of that attempt.
    repeated: int = 0
    rejected: int = 0

    def add(self, statuses: Sequence[str], repeated: int) -> None:
        """Count the rows of one call of the storage."""
        self.rows += len(statuses)
        self.statuses.update(statuses)
        self.repeated += repeated


class WriteReport(Struct, frozen=True, kw_only=True):
    """The result of a write that succeeded.

    A write that fails raises instead. The rows that its tasks sent before stay enqueued.
    """

    queue: str
    run: str
    """Name of the write. A second write with the same name does not enqueue the same rows again."""
    rows: int = 0
    """Number of rows of the DataFrame, including rejected rows."""
    statuses: dict[str, int] = {}
    """Enqueue status -> number of rows: queued, updated, blocked, duplicate, completed, failed."""
    repeated: int = 0
    """Number of rows that an earlier attempt of the same write had enqueued."""
    rejected: int = 0
    """Number of invalid rows that were written to `rejects`."""


def sum_reports(queue: str, run: str, parts: Sequence[PartitionReport | WriteReport]) -> WriteReport:
    """Return the report of a whole write, with the sums of its partitions."""
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
