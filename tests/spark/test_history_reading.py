"""The tables of a warehouse read by other programs: DuckDB, Polars, pandas, pyarrow and Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

import dibs.spark
from dibs.errors import Refused
from dibs.spark.history.increments import update
from dibs.spark.history.reading import table_dataset, table_files
from dibs.storage.registry import open_storage
from tests.spark.random_day import QUEUES, RandomDay
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
    runs = rows(location, "runs", "queue", "offset")
    folders = {queue: queue if queue == QUEUES[0] else "long" for queue, _ in runs}
    return sorted(
        (row["id"], row["fence"], row["end"], row["wait_ms"], folders[queue])
        for (queue, _), row in runs.items()
    )


def shortened(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return rows with "long" for the name of the folder of the second queue."""
    return sorted((*row[:-1], row[-1] if row[-1] == QUEUES[0] else "long") for row in found)


def test_arrow_polars_and_pandas_read_the_dataset(filled: str) -> None:
    dataset = table_dataset(filled, "runs")

    assert expected(filled) == shortened(
        [tuple(row.values()) for row in dataset.to_table(columns=SHOWN).to_pylist()]
    )
    assert expected(filled) == shortened(pl.scan_pyarrow_dataset(dataset).select(SHOWN).collect().rows())
    frame = dataset.to_table(columns=SHOWN).to_pandas()
    assert expected(filled) == shortened([*frame.itertuples(index=False, name=None)])


def test_duckdb_reads_the_dataset(filled: str) -> None:
    runs = table_dataset(filled, "runs")
    found = duckdb.connect().register("runs", runs).execute(f"SELECT {SHOWN!r} FROM runs").fetchall()

    assert len(expected(filled)) == len(found)


def test_the_files_of_a_folder_are_plain_parquet(tmp_path: Path) -> None:
    """pyarrow alone reads the files of a folder, as a program without dibs does."""
    location = str(tmp_path / "warehouse")
    url = f"file:{tmp_path}/jobs"

    async def fill() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare()
            await day.advance(120)

    asyncio.run(fill())
    update(url, location, engine="duckdb")
    files = table_files(location, "runs")
    names = ", ".join(f'"{name}"' for name in SHOWN)
    query = f"SELECT {names} FROM read_parquet({files!r}, hive_types={{'queue': VARCHAR}})"
    by_duckdb = duckdb.connect().execute(query)

    assert expected(location) == shortened(by_duckdb.fetchall())
    assert expected(location) == shortened(
        pl.read_parquet(files, hive_schema={"queue": pl.String, "date": pl.Date}).select(SHOWN).rows()
    )
    assert len(expected(location)) == len(pd.concat(map(pd.read_parquet, files)))


def merged(location: str) -> list[tuple[object, ...]]:
    return sorted((id, row["attempts"]) for (_, id), row in rows(location, "ids", "queue", "id").items())


def test_the_dataset_of_ids_has_one_row_for_each_id(filled: str) -> None:
    table = table_dataset(filled, "ids").to_table()

    assert merged(filled) == sorted((row["id"], row["attempts"]) for row in table.to_pylist())
    assert {at.as_py().date() for at in table["last_end_at"]} == {day.as_py() for day in table["date"]}


def test_the_files_of_ids_are_added_up_by_id(tmp_path: Path) -> None:
    """The query in docs/reference/warehouse.md adds up the rows."""
    location, url = str(tmp_path / "warehouse"), f"file:{tmp_path}/jobs"

    async def go_on() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare()
            for _ in range(2):
                await day.advance(70)
                await asyncio.to_thread(update, url, location, engine="duckdb")

    asyncio.run(go_on())
    files = table_files(location, "ids")
    table = "read_parquet(?, hive_types={'queue': VARCHAR})"
    query = f"SELECT id, sum(attempts)::BIGINT FROM {table} GROUP BY queue, id"
    found = duckdb.connect().execute(query, [files]).fetchall()

    assert merged(location) == sorted(found)
    assert len(found) < sum(pq.read_metadata(file).num_rows for file in files)


def test_spark_reads_one_row_for_each_id(filled: str, spark: SparkSession) -> None:
    found = dibs.spark.read(filled, "ids").select("id", "attempts").collect()

    assert merged(filled) == sorted(tuple(row) for row in found)


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="known tables: events, runs"):
        table_files(tmp_path, "jobs")


def test_spark_reads_a_table(filled: str, spark: SparkSession) -> None:
    found = dibs.spark.read(filled, "runs").select(*SHOWN).collect()

    assert expected(filled) == shortened([tuple(row) for row in found])
