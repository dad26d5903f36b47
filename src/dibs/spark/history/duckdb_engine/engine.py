"""The engine on DuckDB: the computations of an increment as SQL on Parquet files, in this process.

The statements are in queries/*.sql. They read views of the files that Python names, and the variables
`before`, `horizon` and `until`. Times are integers in ms in all statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
from attrs import frozen

from dibs.spark.connection import run_in_thread
from dibs.spark.history.duckdb_engine.partition_writer import ROW_GROUP_ROWS, write_sorted
from dibs.spark.history.duckdb_engine.storage_reader import read_events, read_live
from dibs.spark.history.tables import MINUTE, PARTITION_COLUMNS, SORT_COLUMN, table_schema

if TYPE_CHECKING:
    from dibs.spark.history.log_plan import ReadPlan
    from dibs.spark.history.warehouse.draft import Draft

#: Memory of DuckDB. Larger sorts and sums are spilled to the folder of the attempt.
MEMORY_LIMIT: Final = "512MB"


@contextmanager
def open_duckdb(draft: Draft) -> Iterator[DuckDBEngine]:
    """Yield the engine, with a database in memory that spills to the folder of the draft."""
    settings: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(draft.staging("spill")),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
    }
    with duckdb.connect(config=settings) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(_query("macros"))
        yield DuckDBEngine(database, draft)


@frozen
class DuckDBEngine:
    """The computations of an increment on DuckDB; `Engine` documents the methods."""

    _database: duckdb.DuckDBPyConnection
    _draft: Draft

    @property
    def tasks(self) -> int:
        """One: this process reads the logs."""
        return 1

    def read_live(self, url: str, queues: Sequence[str]) -> None:
        """Write the live jobs of a storage under the name `live-read`."""
        folder = self._draft.staging("live-read")
        run_in_thread(lambda: read_live(url, queues, folder))

    def read_events(self, url: str, plan: ReadPlan) -> None:
        """Write the events of a plan under the name `events`."""
        folder = self._draft.staging("events")
        run_in_thread(lambda: read_events(url, plan, folder))

    def write_live(self, read: Sequence[Path], new: Sequence[Path]) -> None:
        """Write `live`: the jobs in `read`, except jobs that ended by the events in `new`."""
        self._view("events", new)
        self._view("live_read", read, table="live-read", is_partitioned=False)
        self._write("live", "live")

    def first_changed_minutes(
        self, new: Sequence[Path], live: Sequence[Path], old_live: Sequence[Path], before: int, now: int
    ) -> dict[str, int]:
        """Return queue -> first minute (ms) whose metrics have changed, for the queues with changes."""
        self._view("events", new)
        self._view("live", live)
        self._view("old_live", old_live, table="live")
        self._set(before=before, horizon=now)
        return {queue: at - at % MINUTE for queue, at in self._database.sql(_query("changed")).fetchall()}

    def write_runs(self, events: Sequence[Path]) -> None:
        """Write `runs`: one row for each attempt that ended by these events."""
        self._view("events", events)
        self._write("runs", "runs")

    def write_metrics(
        self,
        events: Sequence[Path],
        live: Sequence[Path],
        old: Sequence[Path],
        starts: Mapping[str, int],
        horizon: int,
        end: int | None,
    ) -> None:
        """Write `metrics`: of each queue in `starts`, its minutes from the start (ms) up to `end`."""
        self._view("events", events)
        self._view("live", live)
        self._view("old_metrics", old, table="metrics")
        self._database.register(
            "starts", pa.table({"queue": [*starts], "start": pa.array(starts.values(), pa.int64())})
        )
        self._database.execute(
            "CREATE OR REPLACE VIEW late_events AS SELECT events.* FROM events "
            'JOIN starts ON starts.queue = events.queue WHERE epoch_ms(events."at") >= start'
        )
        self._set(horizon=horizon, until=end)
        self._write("metrics", "metrics")

    def write_ids(self, events: Sequence[Path]) -> None:
        """Write `ids`: one row for each id that ended by these events, on the day of its latest end."""
        self._view("events", events)
        self._write("ids", "ids")

    def merge_files(self, table: str, files: Sequence[Path], name: str) -> None:
        """Write the rows of several files of a table under `name`, as one file for each partition."""
        self._view("merged", files, table=table)
        self._write_rows(table, _query("ids_merged") if table == "ids" else "FROM merged", name)

    def _view(
        self, name: str, files: Sequence[Path], *, table: str = "", is_partitioned: bool = True
    ) -> None:
        """Define the view `name` of files of a table. Without files, the view is empty."""
        self._database.execute(f"DROP VIEW IF EXISTS {name}")
        if not files:
            self._database.register(name, table_schema(table or name).empty_table())
            return
        self._set(**{f"files_{name}": [str(file) for file in files]})
        hive = "true, hive_types={'queue': VARCHAR, 'date': DATE}" if is_partitioned else "false"
        self._database.execute(
            f"CREATE TEMP VIEW {name} AS FROM read_parquet("
            f"getvariable('files_{name}'), hive_partitioning={hive})"
        )

    def _set(self, **variables: Any) -> None:
        for name, value in variables.items():
            self._database.execute(f"SET VARIABLE {name} = ?", [value])

    def _write(self, table: str, query: str) -> None:
        self._write_rows(table, _query(query), table)

    def _write_rows(self, table: str, query: str, name: str) -> None:
        """Write the rows of a query below `name`, sorted by partition and by the table's sort column."""
        order = ", ".join(f'"{column}"' for column in (*PARTITION_COLUMNS, SORT_COLUMN.get(table)) if column)
        rows = self._database.sql(f"FROM ({query}) ORDER BY {order}")
        write_sorted(table, self._draft.staging(name), rows.to_arrow_reader(ROW_GROUP_ROWS))


@cache
def _query(name: str) -> str:
    """Return the statement in queries/<name>.sql."""
    return (package_files(__package__) / "queries" / f"{name}.sql").read_text("utf-8")
