"""What Parquet files say of themselves at their end: how many rows, how late. No row is read for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq


def rows_in(files: Iterable[Path]) -> int:
    """Return how many rows files have together."""
    return sum(pq.read_metadata(file).num_rows for file in files)


def latest(files: Iterable[Path], *columns: str) -> int:
    """Return the latest time, ms, in columns of timestamps; 0 where there is none."""
    return max((at for file in files for at in _latest(file, columns)), default=0)


def _latest(file: Path, columns: tuple[str, ...]) -> Iterator[int]:
    told = pq.read_metadata(file)
    for group in range(told.num_row_groups):
        row_group = told.row_group(group)
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            # A column of nulls alone has none.
            if column.path_in_schema in columns and (said := column.statistics) and said.has_min_max:
                yield said.max_raw // 1000
