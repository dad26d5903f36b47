"""Tables read for a report, without Spark: few rows are in memory at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.spark.report.figures.parquet import WarehouseReader, best_rows

ROWS = 35


@pytest.fixture
def reader(tmp_path: Path) -> WarehouseReader:
    """Two files of ids in one partition, and one file of another queue."""
    root = tmp_path / "warehouse"
    with Warehouse(root).open_draft() as draft:
        for queue, part, begin in (("mail", 0, 0), ("mail", 1, ROWS), ("images", 0, 1000)):
            folder = draft.staging("ids") / f"queue={queue}" / "date=2026-11-20"
            folder.mkdir(parents=True, exist_ok=True)
            numbers = list(range(begin, begin + ROWS))
            ids = pa.table({"id": [f"id {number}" for number in numbers], "attempts": numbers})
            pq.write_table(ids, folder / f"part-{part}.parquet")
        draft.add("ids", "ids")
        draft.commit(draft.before)
    return WarehouseReader(Warehouse.existing(root))


def test_few_rows_are_held_at_once(reader: WarehouseReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.spark.report.figures.parquet.BATCH_ROWS", 10)

    assert [10, 10, 10, 5] * 2 == [batch.num_rows for batch in reader.batches("ids", "mail")]


def test_the_largest_of_all_batches_are_found(
    reader: WarehouseReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.spark.report.figures.parquet.BATCH_ROWS", 10)
    columns, odd = ("id", "attempts"), pc.bit_wise_and(pc.field("attempts"), 1) == 1

    top_rows: list[dict[str, Any]] = []
    for batch in reader.batches("ids", "mail", columns, odd):
        best_rows(top_rows, batch, ["attempts"], 3)

    assert [(f"id {number}", number) for number in (69, 67, 65)] == [(*row.values(),) for row in top_rows]
    assert [(number,) * 2 for number in range(40, 43)] == reader.column_pairs(
        "ids", "mail", ("attempts", "attempts"), (pc.field("attempts") >= 40) & (pc.field("attempts") < 43)
    )
