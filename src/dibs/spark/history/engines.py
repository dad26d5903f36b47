"""The interface of the engines that run the definitions of the tables: Spark, or DuckDB in this process.

An engine reads a storage and runs statements, and writes what it finds as Parquet files to a folder of the
increment. warehouse.py commits these files. Both engines run the same statements (queries/__init__.py) and
write the same values; tests/spark/test_history_warehouse.py compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from dibs.errors import ConfigurationError
from dibs.spark.history.storage_reads import ReadPart
from dibs.spark.history.tables import Sources, TableRows

EngineName = Literal["auto", "spark", "duckdb"]

INSTALL_COMMAND: Final = "pip install 'dibs[history]'"


class Engine(Protocol):
    """A program that runs statements."""

    @property
    def tasks(self) -> int:
        """Number of ranges into which a long log is divided, to be read in parallel."""

    def read(self, url: str, table: str, parts: Sequence[ReadPart]) -> TableRows:
        """Write the rows of `parts` of a storage, and return their files."""

    def write(self, table: str, sql: str, sources: Sources) -> TableRows:
        """Write the rows of a statement with the columns of `table`, and return their files."""

    def rows(self, sql: str, sources: Sources) -> list[Any]:
        """Return the rows of a statement."""


@contextmanager
def open_engine(name: EngineName, folder: Path) -> Iterator[Engine]:
    """Yield an engine that writes to subfolders of `folder`."""
    if choose_engine(name) == "duckdb":
        from dibs.spark.history.duckdb_engine import open_duckdb  # noqa: PLC0415

        with open_duckdb(folder) as engine:
            yield engine
    else:
        from dibs.spark.history.spark_engine import open_spark  # noqa: PLC0415
        from dibs.spark.java import session  # noqa: PLC0415

        with open_spark(session("dibs history"), folder) as engine:
            yield engine


def choose_engine(name: EngineName) -> Literal["spark", "duckdb"]:
    """Return the engine for a name. Raise ConfigurationError if its packages are missing.

    `auto` is DuckDB if it is installed; docs/explanation/spark_performance.md compares both.
    """
    has_duckdb = find_spec("duckdb") is not None
    if name == "spark" or (name == "auto" and not has_duckdb and find_spec("pyspark") is not None):
        return "spark"
    if not has_duckdb or find_spec("pyarrow") is None:
        raise ConfigurationError(f"the history needs pyarrow, duckdb and deltalake: {INSTALL_COMMAND}")
    return "duckdb"
