"""The engine on DuckDB, in this process, on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen

from dibs.spark.connection import StorageConnection, run_in_thread
from dibs.spark.history.queries import definition
from dibs.spark.history.storage_reads import ReadPart, part_batches
from dibs.spark.history.tables import PARTITION_COLUMNS, SORT_COLUMN, table_schema

if TYPE_CHECKING:
    from dibs.spark.history.tables import Sources, TableFiles
    from dibs.spark.history.warehouse.draft import WarehouseDraft

#: Memory of DuckDB. Larger sorts and sums are spilled to the folder of the attempt.
MEMORY_LIMIT: Final = "512MB"


@contextmanager
def open_duckdb(draft: WarehouseDraft) -> Iterator[DuckDBEngine]:
    """Yield the engine, with a database in memory that spills to the folder of the draft."""
    with connect(memory_limit=MEMORY_LIMIT, temp_directory=str(draft.staging("spill"))) as database:
        yield DuckDBEngine(database, draft)


def connect(**config: str) -> duckdb.DuckDBPyConnection:
    """Return a new database in memory that has the functions of the definitions."""
    database = duckdb.connect(config={**config, "autoinstall_known_extensions": False})
    database.execute("SET TimeZone = 'UTC'")
    database.execute(definition("duckdb"))
    return database


def add_sources(database: duckdb.DuckDBPyConnection, sources: Sources) -> None:
    """Define a view of each source; without files, the view is empty."""
    for name, source in sources.items():
        database.execute(f"DROP VIEW IF EXISTS {name}")
        if isinstance(source, pa.Table):
            database.register(name, source)
        elif not source.files:
            database.register(name, table_schema(source.table).empty_table())
        else:
            _read_files(database, source).create_view(name)


def _read_files(database: duckdb.DuckDBPyConnection, source: TableFiles) -> duckdb.DuckDBPyRelation:
    files = [str(file) for file in source.files]
    if not source.files[0].parent.name.startswith("date="):
        return database.read_parquet(files, hive_partitioning=False)
    types = "hive_types={'queue': VARCHAR, 'date': DATE}"
    return database.sql(
        f"FROM read_parquet($files, hive_partitioning=true, {types})", params={"files": files}
    )


@frozen
class DuckDBEngine:
    """`Engine` documents the methods."""

    _database: duckdb.DuckDBPyConnection
    _draft: WarehouseDraft

    @property
    def tasks(self) -> int:
        """One: this process reads the logs."""
        return 1

    def read(self, url: str, table: str, parts: Sequence[ReadPart]) -> None:
        """Write the rows of `parts` of a storage as one file."""
        folder = self._draft.staging(table)
        folder.mkdir(parents=True)

        def read() -> None:
            with (
                StorageConnection(url) as connection,
                pq.ParquetWriter(folder / "part-0.parquet", table_schema(table)) as writer,
            ):
                for part in parts:
                    for batch in part_batches(connection, part):
                        writer.write_batch(batch)

        run_in_thread(read)

    def write(self, name: str, table: str, sql: str, sources: Sources) -> None:
        """Write the rows of a statement by queue and day, sorted by the table's sort column."""
        add_sources(self._database, sources)
        order = ", ".join(f'"{column}"' for column in (*PARTITION_COLUMNS, SORT_COLUMN.get(table)) if column)
        target = str(self._draft.staging(name)).replace("'", "''")
        self._database.execute(
            f"COPY ({sql} ORDER BY {order}) TO '{target}' (FORMAT parquet, PARTITION_BY (queue, date))"
        )

    def rows(self, sql: str, sources: Sources) -> list[Any]:
        """Return the rows of a statement."""
        add_sources(self._database, sources)
        return self._database.sql(sql).fetchall()
