"""The interface of the engines that run the definitions of the tables: Spark, or DuckDB in this process.

An engine reads and writes Parquet files in local folders. It knows neither generations nor the store of
the warehouse, so that every store works with both engines. Both run the same statements
(queries/__init__.py) and write the same values; tests/spark/test_history_engines.py compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from dibs.errors import ConfigurationError
from dibs.spark.history.queries import statement
from dibs.spark.history.storage_reads import ReadPart
from dibs.spark.history.tables import Sources
from dibs.spark.history.warehouse.draft import WarehouseDraft

EngineName = Literal["auto", "spark", "duckdb"]

INSTALL_COMMAND: Final = "pip install 'dibs[history]'"


class Engine(Protocol):
    """A program that runs statements. What it writes is below `draft.staging(name)`."""

    @property
    def tasks(self) -> int:
        """Number of ranges into which a long log is divided, to be read in parallel."""

    def read(self, url: str, table: str, parts: Sequence[ReadPart]) -> None:
        """Write the rows of `parts` of a storage under the name `table`, without partitions."""

    def write(self, name: str, table: str, sql: str, sources: Sources) -> None:
        """Write the rows of a statement by queue and day, with the columns of `table`."""

    def rows(self, sql: str, sources: Sources) -> list[Any]:
        """Return the rows of a statement."""


def write_table(
    engine: Engine, table: str, sources: Sources, *, name: str = "", definition: str = ""
) -> None:
    """Write a table by its definition under a name, by default that of the table."""
    sql = statement(definition or table, *sources, table=table)
    engine.write(name or table, table, sql, sources)


def bounds(horizon: int, before: int = 0, until: int | None = None) -> pa.Table:
    """Return the source `bounds`: one row with times in ms."""
    names = {"horizon": horizon, "before": before, "until": until}
    return pa.table({name: pa.array([value], pa.int64()) for name, value in names.items()})


@contextmanager
def open_engine(name: EngineName, draft: WarehouseDraft) -> Iterator[Engine]:
    """Yield an engine that writes to the folder of a draft."""
    if choose_engine(name) == "duckdb":
        from dibs.spark.history.duckdb_engine import open_duckdb  # noqa: PLC0415

        with open_duckdb(draft) as engine:
            yield engine
    else:
        from dibs.spark.history.spark_engine import open_spark  # noqa: PLC0415
        from dibs.spark.java import session  # noqa: PLC0415

        with open_spark(session("dibs history"), draft) as engine:
            yield engine


def choose_engine(name: EngineName) -> Literal["spark", "duckdb"]:
    """Return the engine for a name. Raise ConfigurationError if its packages are missing.

    `auto` is DuckDB if it is installed; docs/explanation/spark_performance.md compares both.
    """
    has_duckdb = find_spec("duckdb") is not None
    if name == "spark" or (name == "auto" and not has_duckdb and find_spec("pyspark") is not None):
        return "spark"
    if not has_duckdb or find_spec("pyarrow") is None:
        raise ConfigurationError(f"the history needs pyarrow and duckdb: {INSTALL_COMMAND}")
    return "duckdb"
