"""The periods in which a log was trimmed before an increment read its events.

No storage counts the events that it trims. Their number does not follow from the offsets either: each
storage draws the numbers of log entries from the counter of revisions and fences, which is at least its time
in us, and an entry has any number of events. The warehouse knows the period: from the last event that was
read to the first event after it. The number is estimated by the attempts of the hours around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow.compute as pc
from msgspec import Struct

from dibs.spark.history.warehouse.manifest import LogGap
from dibs.spark.report.figures.activity import HOUR
from dibs.spark.report.figures.findings import MINUTE
from dibs.spark.report.figures.parquet import WarehouseReader, datetime_to_ms, ms_to_timestamp


class TrimmedPeriod(Struct, frozen=True, kw_only=True):
    """A period of a queue whose events were trimmed unread. Times are ms since the epoch."""

    queue: str
    #: Newest time in all tables at the increment before.
    at: int
    #: Time of the last event of the queue that was read before; None without one.
    begin: int | None = None
    #: Time of the first event of the queue after the period; None without one.
    end: int | None = None
    #: Attempts that ended in the period, by the rate of the hour before it and the hour after it. None if the
    #: period is open.
    estimated_attempts: int | None = None


def find_trimmed_periods(reader: WarehouseReader, gaps: Iterable[LogGap]) -> Iterator[TrimmedPeriod]:
    """Yield the period of each gap, from the times of the events around it."""
    for gap in gaps:
        at, moment = pc.field("at"), ms_to_timestamp(gap.at)
        earlier = reader.batches("events", gap.queue, ["at"], at <= moment)
        later = reader.batches("events", gap.queue, ["at"], at > moment)
        begin = max((datetime_to_ms(pc.max(batch.column(0)).as_py()) for batch in earlier), default=None)
        end = min((datetime_to_ms(pc.min(batch.column(0)).as_py()) for batch in later), default=None)
        estimate = None if begin is None or end is None else _estimate(reader, gap.queue, begin, end)
        yield TrimmedPeriod(queue=gap.queue, at=gap.at, begin=begin, end=end, estimated_attempts=estimate)


def _estimate(reader: WarehouseReader, queue: str, begin: int, end: int) -> int:
    """Return the attempts that a period would have at the mean rate of the hours around it.

    An hour counts as far as the history has it.
    """
    minutes = reader.minutes(queue)
    first, last = minutes[0]["minute"], minutes[-1]["minute"] + MINUTE
    before = range(max(first, begin - HOUR), begin + 1)
    after = range(end // MINUTE * MINUTE, min(last, end + HOUR))
    attempts: int = sum(
        row["attempts"] for row in minutes if row["minute"] in before or row["minute"] in after
    )
    return round(attempts * (end - begin) / max(MINUTE, len(before) + len(after)))
