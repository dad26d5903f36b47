"""The periods in which a log was trimmed before an increment read its events.

Offsets are opaque, so a warehouse does not know how many events are missing. It knows the period: from the
last event that was read to the first event after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow.compute as pc
from msgspec import Struct

from dibs.spark.history.warehouse.manifest import LogGap
from dibs.spark.report.parquet import WarehouseReader, datetime_to_ms, ms_to_timestamp


class TrimmedPeriod(Struct, frozen=True, kw_only=True):
    """A period of a queue whose events were trimmed unread. Times are ms since the epoch."""

    queue: str
    #: Newest time in all tables at the increment before.
    at: int
    #: Time of the last event of the queue that was read before; None without one.
    begin: int | None = None
    #: Time of the first event of the queue after the period; None without one.
    end: int | None = None


def find_trimmed_periods(reader: WarehouseReader, gaps: Iterable[LogGap]) -> Iterator[TrimmedPeriod]:
    """Yield the period of each gap, from the times of the events around it."""
    for gap in gaps:
        at, moment = pc.field("at"), ms_to_timestamp(gap.at)
        earlier = reader.batches("events", gap.queue, ["at"], at <= moment)
        later = reader.batches("events", gap.queue, ["at"], at > moment)
        yield TrimmedPeriod(
            queue=gap.queue,
            at=gap.at,
            begin=max((datetime_to_ms(pc.max(batch.column(0)).as_py()) for batch in earlier), default=None),
            end=min((datetime_to_ms(pc.min(batch.column(0)).as_py()) for batch in later), default=None),
        )
