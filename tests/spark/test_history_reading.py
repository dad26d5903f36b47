"""The tables of a warehouse read by other programs: DuckDB, Polars, pandas, pyarrow and Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

import dibs.spark
from dibs.errors import Refused
from dibs.spark.history.increments import update
from dibs.spark.history.reading import open_history, table_dataset, table_files
from dibs.storage.registry import open_storage
from tests.spark.random_day import RandomDay
from tests.spark.warehouse_rows import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = ["id", "fence", "end", "wait_ms", "queue"]


@pytest.fixture
def filled(location: str, tmp_path: Path) -> str:
    """A warehouse of three increments, so that some of its files were replaced."""
    url = f"file:{tmp_path}/jobs"

    async def go_on() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare()
            for _ in range(3):
                await day.advance(70)
                await asyncio.to_thread(update, url, location, engine="duckdb")

    asyncio.run(go_on())
    return location


def expected(location: str) -> list[tuple[object, ...]]:
    return sorted(
        (row["id"], row["fence"], row["end"], row["wait_ms"], queue)
        for (queue, _), row in rows(location, "runs").items()
    )


def test_arrow_polars_and_pandas_read_the_dataset(filled: str) -> None:
    dataset = table_dataset(filled, "runs")

    assert expected(filled) == sorted(
        tuple(row.values()) for row in dataset.to_table(columns=SHOWN).to_pylist()
    )
    assert expected(filled) == sorted(pl.scan_pyarrow_dataset(dataset).select(SHOWN).collect().rows())
    frame = dataset.to_table(columns=SHOWN).to_pandas()
    assert expected(filled) == sorted(frame.itertuples(index=False, name=None))


def test_duckdb_has_a_view_of_each_table(filled: str) -> None:
    with open_history(filled) as history:
        names = ", ".join(f'"{name}"' for name in SHOWN)
        found = history.sql(f"SELECT {names} FROM runs").fetchall()
        counts = {name: len(history.table(name)) for name in ("events", "runs", "metrics", "ids", "live")}

    assert expected(filled) == sorted(found)
    assert {name: len(rows(filled, name)) for name in counts} == counts


def test_programs_without_dibs_read_the_tables(tmp_path: Path) -> None:
    """Any reader of Delta Lake, and any reader of Parquet with the list of files."""
    location, url = str(tmp_path / "warehouse"), f"file:{tmp_path}/jobs"

    async def fill() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare()
            for _ in range(2):
                await day.advance(70)
                await asyncio.to_thread(update, url, location, engine="duckdb")

    asyncio.run(fill())
    offsets = sorted(rows(location, "events"))
    files = table_files(location, "events")

    assert offsets == sorted(pl.read_delta(f"{location}/events").select("queue", "offset").rows())
    assert offsets == sorted(duckdb.read_parquet(files).select('queue, "offset"').fetchall())
    frame = DeltaTable(f"{location}/metrics").to_pandas()
    assert len(rows(location, "metrics")) == len(frame)


@pytest.mark.parametrize("table", ["events", "runs", "metrics", "ids", "live"])
def test_spark_reads_a_table(filled: str, spark: SparkSession, table: str) -> None:
    found = dibs.spark.read(filled, table).toArrow()
    columns = found.column_names

    assert table_dataset(filled, table).schema.names == columns
    order = [(name, "ascending") for name in columns]
    expected_rows = table_dataset(filled, table).to_table().sort_by(order).to_pylist()
    assert expected_rows == found.cast(table_dataset(filled, table).schema).sort_by(order).to_pylist()


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="known tables: events, runs"):
        table_dataset(tmp_path, "jobs")
    with pytest.raises(Refused, match="is no stored table"):
        table_files(tmp_path, "runs")
