"""The interface of the engines that compute tables: Spark, or DuckDB in this process.

An engine reads and writes Parquet files in local folders. It knows neither generations nor the store of
the warehouse, so that every store works with both engines. Both write the same values;
tests/spark/test_history_engines.py compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, Protocol

from dibs.errors import ConfigurationError
from dibs.spark.history.storage_reads import ReadPlan
from dibs.spark.history.warehouse.draft import WarehouseDraft

EngineName = Literal["auto", "spark", "duckdb"]

INSTALL_COMMAND: Final = "pip install 'dibs[history]'"


class Engine(Protocol):
    """The computations of an increment. Each method that writes files puts them below
    `draft.staging(name)`.
    """

    @property
    def tasks(self) -> int:
        """Number of ranges into which a long log is divided, to be read in parallel."""

    def read_live(self, url: str, queues: Sequence[str]) -> None:
        """Write the live jobs of a storage under the name `live-read`; without `queues`, of all queues.

        An id may be there several times; the row with the highest `seen` counts.
        """

    def read_events(self, url: str, plan: ReadPlan) -> None:
        """Write the events of a plan under the name `events`."""

    def write_live(self, read: Sequence[Path], new: Sequence[Path]) -> None:
        """Write `live`: the jobs in `read`, except jobs that ended by the events in `new`.

        An active job whose attempt ended without ending the job, for example by a retry, becomes waiting.
        """

    def first_changed_minutes(
        self, new: Sequence[Path], live: Sequence[Path], old_live: Sequence[Path], before: int, now: int
    ) -> dict[str, int]:
        """Return queue -> first minute (ms) whose metrics have changed, for the queues with changes.

        `before` and `now` are the old and the new horizon in ms.
        """

    def write_runs(self, events: Sequence[Path]) -> None:
        """Write `runs`: one row for each attempt that ended by these events."""

    def write_metrics(
        self,
        events: Sequence[Path],
        live: Sequence[Path],
        old: Sequence[Path],
        starts: Mapping[str, int],
        horizon: int,
        end: int | None,
    ) -> None:
        """Write `metrics`: of each queue in `starts`, its minutes from the start (ms) up to `end`.

        The other minutes of these queues are those in `old`.
        """

    def write_ids(self, events: Sequence[Path]) -> None:
        """Write `ids`: one row for each id that ended by these events, on the day of its latest end."""

    def merge_files(self, table: str, files: Sequence[Path], name: str) -> None:
        """Write the rows of several files of a table under `name`, as one file for each partition.

        In a partition of `ids`, the rows of one id become one row.
        """


@contextmanager
def open_engine(name: EngineName, draft: WarehouseDraft) -> Iterator[Engine]:
    """Yield an engine that writes to the folder of a draft."""
    if choose_engine(name) == "duckdb":
        from dibs.spark.history.duckdb_engine import open_duckdb  # noqa: PLC0415

        with open_duckdb(draft) as engine:
            yield engine
    else:
        from dibs.spark.history.spark_engine.engine import open_spark  # noqa: PLC0415
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
