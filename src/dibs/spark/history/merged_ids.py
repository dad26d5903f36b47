"""The rows of the table `ids` merged by id.

An increment adds a row for each id of its events, and never reads the rows of earlier increments: that would
cost as much as all ids of the history. So a reader merges the rows of an id.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dibs.spark.history.tables import IDS_MERGES


def merge_ids(rows: pa.Table) -> pa.Table:
    """Return one row for each id of rows of `ids`, with the same columns, which may be only some of `ids`.

    Ids of different queues are different if the rows have the column `queue`.
    """
    names = rows.column_names
    keys = [name for name in ("queue", "id") if name in names]
    merges = [(name, how) for name, how in IDS_MERGES.items() if name in names]
    found = rows.group_by(keys, use_threads=False).aggregate(merges)
    merged = found.select([*keys, *(f"{name}_{how}" for name, how in merges)])
    merged = merged.rename_columns([*keys, *(name for name, _ in merges)])
    if "date" in names:
        merged = merged.append_column("date", utc_days(merged.column("last_end_at")))
    return merged.select(names)


def utc_days(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the days in UTC of timestamps."""
    return pc.floor_temporal(times.cast(pa.timestamp("us")), unit="day").cast(pa.date32())
