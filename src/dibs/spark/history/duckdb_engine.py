"""The engine on DuckDB, in this process, on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen

from dibs.spark.connection import StorageConnection, run_in_thread
from dibs.spark.history.queries import definition
from dibs.spark.history.storage_reads import ReadPart, part_batches
from dibs.spark.history.tables import staged_rows, table_schema

if TYPE_CHECKING:
    from dibs.spark.history.tables import Sources, TableRows

#: Memory of DuckDB. Larger sorts and sums are spilled to the folder of the increment.
MEMORY_LIMIT: Final = "512MB"


@contextmanager
def open_duckdb(folder: Path) -> Iterator[DuckDBEngine]:
    """Yield the engine, with a database in memory that spills to the folder of the increment."""
    with connect(memory_limit=MEMORY_LIMIT, temp_directory=str(folder / "spill")) as database:
        yield DuckDBEngine(database, folder)


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
        else:
            rows = _relation(database, source)
            (rows.set_alias("t").filter(source.where) if source.where else rows).create_view(name)


def _relation(database: duckdb.DuckDBPyConnection, source: TableRows) -> duckdb.DuckDBPyRelation:
    if source.is_remote or not source.paths:
        return database.from_arrow(source.dataset())
    return database.read_parquet(source.files, hive_partitioning=False)


@frozen
class DuckDBEngine:
    """The engine that runs the statements in this process, on DuckDB. `Engine` documents the methods."""

    _database: duckdb.DuckDBPyConnection
    _folder: Path

    @property
    def tasks(self) -> int:
        """One: this process reads the logs."""
        return 1

    def read(self, url: str, table: str, parts: Sequence[ReadPart]) -> TableRows:
        """Write the rows of `parts` of a storage as one file."""
        folder = self._folder / table
        folder.mkdir()

        def read() -> None:
            with (
                StorageConnection(url) as connection,
                pq.ParquetWriter(folder / "part-0.parquet", table_schema(table)) as writer,
            ):
                for part in parts:
                    for batch in part_batches(connection, part):
                        writer.write_batch(batch)

        run_in_thread(read)
        return staged_rows(table, folder)

    def write(self, table: str, sql: str, sources: Sources) -> TableRows:
        """Write the rows of a statement as one file."""
        add_sources(self._database, sources)
        folder = self._folder / table
        folder.mkdir()
        target = str(folder / "part-0.parquet").replace("'", "''")
        self._database.execute(f"COPY ({sql}) TO '{target}' (FORMAT parquet)")
        return staged_rows(table, folder)

    def rows(self, sql: str, sources: Sources) -> list[Any]:
        add_sources(self._database, sources)
        return self._database.sql(sql).fetchall()
