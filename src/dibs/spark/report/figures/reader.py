"""The reader of a warehouse for a report: statements of DuckDB on its tables.

A report reads one queue after the other. The ends of its attempts are copied to the table its, which all
figures of the queue read: so the files are read once for each queue, and few times more for tracebacks.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from dibs.spark.history.queries import statement
from dibs.spark.history.reading import open_views
from dibs.spark.history.warehouse import Warehouse

#: Memory of DuckDB. Larger tables are spilled to a temporary folder.
MEMORY_LIMIT: Final = "512MB"


class HistoryReader:
    """The tables of a warehouse from `since` up to `until` (ms), at the rows that its metrics count.

    `runs` and `events` also have what ended after `until`, because such a run may have begun before.
    """

    def __init__(self, warehouse: Warehouse, since: int | None = None, until: int | None = None) -> None:
        self._folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="dibs-report-")
        config = {"memory_limit": MEMORY_LIMIT, "temp_directory": self._folder.name}
        self._database = open_views(warehouse, config, since, until)

    def close(self) -> None:
        """Close the database and remove its temporary files."""
        self._database.close()
        self._folder.cleanup()

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the rows of a statement by column. `$name` is a parameter."""
        found = self._database.sql(sql, params=parameters).to_arrow_table().to_pylist()
        return cast("list[dict[str, Any]]", found)

    def queues(self) -> list[str]:
        """Return the names of the queues that have metrics."""
        return [row["queue"] for row in self.rows("SELECT DISTINCT queue FROM metrics ORDER BY queue")]

    def last_minute(self) -> int | None:
        """Return the latest minute (ms) of the metrics."""
        [row] = self.rows("SELECT epoch_ms(max(minute)) AS last FROM metrics")
        return cast("int | None", row["last"])

    def minutes(self, queue: str) -> list[dict[str, Any]]:
        """Return the metrics of a queue in order; `minute` is in ms."""
        return self.rows(
            "SELECT * REPLACE (epoch_ms(minute) AS minute) FROM metrics WHERE queue = $queue ORDER BY minute",
            queue=queue,
        )

    def select(self, queue: str) -> None:
        """Copy the ends of the attempts of a queue to the table its, and define the view its_runs."""
        self._database.execute("DROP VIEW IF EXISTS its_runs")
        self._database.execute(
            "CREATE OR REPLACE TEMP TABLE its AS SELECT * EXCLUDE (result) "
            "REPLACE ('' AS error_message, '' AS error_traceback) "
            "FROM events WHERE queue = ? AND finished_at IS NOT NULL",
            [queue],
        )
        self._database.execute(f"CREATE TEMP VIEW its_runs AS {_of('its', 'runs')}")

    def sum_ids(self, begin: int, end: int) -> None:
        """Make the table its_ids: the sums of the ids of the queue that ended from `begin` to `end` (ms)."""
        ended = f"(SELECT * FROM its WHERE {finished_in((begin, end))})"  # noqa: S608 - numbers
        self._database.execute(f"CREATE OR REPLACE TEMP TABLE its_ids AS {_of(ended, 'ids')}")


def finished_in(span: tuple[int, int]) -> str:
    """Return the condition that an attempt ended in a span of ms."""
    begin, end = span
    return f"finished_at >= make_timestamptz({begin * 1000}) AND finished_at < make_timestamptz({end * 1000})"


def _of(table: str, name: str) -> str:
    """Return the statement of a definition that reads `table` in place of `events`."""
    return statement(name, "events", table=name).replace("FROM events e", f"FROM {table} e")
