"""The tables of a warehouse for programs: as views in DuckDB, as datasets of Arrow, and as files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.dataset as pads

from dibs.spark.history.duckdb_engine import add_sources, connect
from dibs.spark.history.queries import statement
from dibs.spark.history.tables import VIEWS
from dibs.spark.history.warehouse import Warehouse, iso_time, table_rows


def open_history(warehouse: str | Path, **config: str) -> duckdb.DuckDBPyConnection:
    """Return a database of DuckDB in memory with the views events, runs, metrics, ids and live.

        open_history("./history").sql("SELECT queue, count(*) FROM runs GROUP BY queue").show()

    The views read the files that are valid now. A replaced file is kept for an hour; open the history again
    to read the newest rows. `config` are settings of DuckDB. Raise Refused for a location without a
    warehouse.
    """
    return open_views(Warehouse(warehouse), config)


def open_views(
    tables: Warehouse, config: Mapping[str, str], since: int | None = None, until: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Return the database of `open_history` for an open warehouse, with the rows that its metrics count.

    With `since` (ms), files of older events and metrics are not opened. `until` leaves out later metrics.
    """
    database = connect(**config)
    begin = "-infinity" if since is None else iso_time(since)
    end = "infinity" if until is None else iso_time(until)
    least = None if since is None else datetime.fromtimestamp(since / 1000, UTC)
    events = f"t.increment <= {tables.state.increment} AND t.at >= TIMESTAMPTZ '{begin}'"
    minutes = f"t.minute >= TIMESTAMPTZ '{begin}' AND t.minute < TIMESTAMPTZ '{end}'"
    sources = {
        "events": tables.events.rows(events, "at", least),
        "live": tables.counted_live().rows(),
        "metrics": tables.metrics.rows(minutes, "minute", least),
    }
    add_sources(database, sources)
    for view in VIEWS:
        database.execute(f"CREATE VIEW {view} AS {statement(view, 'events', table=view)}")
    return database


def table_files(warehouse: str | Path, table: str) -> list[str]:
    """Return the paths or URLs of the Parquet files of events, live or metrics.

    The files stay readable for an hour after an increment has replaced them. Raise Refused for an unknown
    table, and for a location without a warehouse.
    """
    return table_rows(warehouse, table).files


def table_dataset(warehouse: str | Path, table: str) -> pads.Dataset:
    """Return events, runs, metrics, ids or live as a dataset of Arrow, for Polars, pandas and DuckDB.

    Those of `runs` and `ids`, which are computed from `events`, are in memory. Raise Refused for an unknown
    table, and for a location without a warehouse.
    """
    if table not in VIEWS:
        return table_rows(warehouse, table).dataset()
    with open_history(warehouse) as database:
        return pads.dataset(database.table(table).to_arrow_table())
