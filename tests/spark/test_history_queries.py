"""The statements of the page "Ten questions to the history" run in DuckDB and Spark, with equal rows."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import dibs.spark
from dibs.spark.history.reading import open_history
from dibs.spark.history.tables import TABLES
from tests.docs.pages import Page
from tests.spark.expected_history import nearest_rank
from tests.spark.report_rows import DAY, MINUTE, NOON, Run, write_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATEMENTS = {block.title: block.text for block in Page("howto/history_queries.md").blocks if block.title}
ERRORS = {"failed": "KeyError", "retried": "TimeoutError"}


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Two weeks of runs, of which the second has a new error."""
    rng = Random(3)
    found = []
    for number in range(400):
        due = NOON + rng.randrange(-7 * DAY, 7 * DAY)
        end = rng.choice(("completed",) * 5 + ("failed", "retried"))
        error = "DiskFull" if end == "failed" and due > NOON + DAY else ERRORS.get(end)
        customer = rng.choice(("ada", "bob", "eve"))
        found.append(
            Run(
                id=f"id {number % 60}", queue=rng.choice(("mail", "images")), due=due, end=end, error=error,
                wait=rng.randrange(MINUTE), run=rng.randrange(MINUTE),
                flow=f"flow {number % 7}" if number % 3 == 0 else None,
                attributes={"customer": f'"{customer}"'} if number % 5 else None,
            )
        )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def warehouse(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_history(tmp_path_factory.mktemp("queries"), runs)


def in_duckdb(warehouse: Path, title: str) -> list[tuple[Any, ...]]:
    return [tuple(map(comparable, row)) for row in open_history(warehouse).sql(STATEMENTS[title]).fetchall()]


def comparable(value: Any) -> Any:
    """Return times in UTC without their zone, and numbers of any type as rounded floats."""
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return value if value is None or isinstance(value, str) else round(float(value), 6)


def test_there_are_ten() -> None:
    assert 10 == len(STATEMENTS)


@pytest.mark.parametrize("title", STATEMENTS)
def test_both_engines_answer_alike(warehouse: Path, spark: SparkSession, title: str) -> None:
    for table in TABLES:
        dibs.spark.read(warehouse, table).createOrReplaceTempView(table)
    rows = [tuple(map(comparable, row)) for row in spark.sql(STATEMENTS[title]).collect()]

    assert in_duckdb(warehouse, title) == rows
    assert rows or title == "oldest_live_jobs"


def test_the_answers_are_those_of_a_count_in_python(warehouse: Path, runs: list[Run]) -> None:
    seconds: Counter[tuple[str, str | None]] = Counter()
    weeks: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    first_at: dict[tuple[str, str], int] = {}
    midnight = NOON - DAY // 2
    for run in runs:
        seconds[run.queue, (run.attributes or {}).get("customer")] += run.run
        if midnight - 7 * DAY <= run.finished < midnight + 7 * DAY:
            weeks[run.queue][run.finished < midnight].append(run.run)
        if run.error:
            first_at[run.queue, run.error] = min(first_at.get((run.queue, run.error), NOON * 2), run.finished)

    found = {
        (queue, customer): cost for queue, customer, _, cost in in_duckdb(warehouse, "run_time_by_customer")
    }
    assert {group: ms / 1000 for group, ms in seconds.items()} == found
    assert [
        (queue, *(nearest_rank(sorted(week), 95) for week in weeks[queue])) for queue in sorted(weeks)
    ] == in_duckdb(warehouse, "run_p95_by_week")
    new = {group for group, at in first_at.items() if at >= midnight}
    assert new == {row[:2] for row in in_duckdb(warehouse, "first_seen_errors")}
    assert {("mail", "DiskFull"), ("images", "DiskFull")} <= new


@pytest.mark.spark
def test_the_declarative_pipeline_of_the_page_makes_its_table(warehouse: Path, tmp_path: Path) -> None:
    blocks = [block for block in Page("howto/data_pipelines.md").blocks if block.title]
    files = {
        block.title: block.text for block in blocks if "pipeline" in block.text or "runs_by_day" in block.text
    }
    assert {"spark-pipeline.yml", "transformations/history.py", "transformations/runs_by_day.sql"} == {*files}
    (tmp_path / "transformations").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("/data/pipeline", f"{tmp_path}/state"))
    (tmp_path / "history").symlink_to(warehouse)
    command = Path(sys.executable).with_name("spark-pipelines")
    done = subprocess.run([command, "run"], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert "Run is COMPLETED" in done.stdout + done.stderr, done.stderr[-3000:]
    found = duckdb.connect().sql(
        f"SELECT * FROM '{tmp_path}/spark-warehouse/runs_by_day/*.parquet' ORDER BY ALL"
    )
    statement = files["transformations/runs_by_day.sql"].partition("AS\n")[2].rstrip().rstrip(";")
    expected = open_history(warehouse).sql(f"{statement} ORDER BY ALL")
    assert [tuple(map(comparable, row)) for row in expected.fetchall()] == [
        tuple(map(comparable, row)) for row in found.fetchall()
    ]
