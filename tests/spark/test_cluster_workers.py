"""Workers in the tasks of a Spark job."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs import Dibs
from dibs.errors import Refused
from dibs.spark.cluster_workers import run_workers
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from dibs.spark import executors
from dibs.spark.dataframes import read
from tests.spark.source_storages import at, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "tests.spark.source_app:app"


async def test_two_tasks_empty_a_queue(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("redis", request)
    async with Dibs(url) as app:
        tickets = await app.queue("double").enqueue_many(range(200))

        reports = run_workers(spark, APP, 2, url=url)

        assert 200 == sum(report.ends["completed"] for report in reports)
        assert [2 * number for number in range(200)] == [await ticket.result(wait=0) for ticket in tickets]


async def test_a_lost_executor_is_a_stall_and_its_job_comes_back(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Spark retries the task.

    Its new supervisor reaps the run of the first attempt after the lease has expired, and the job waits for a
    second until its next attempt.
    """
    url = new_url("file", request)
    async with Dibs(url) as app:
        ticket = await app.queue("fatal").enqueue({"mark": str(tmp_path / "mark")})

        run_workers(spark, APP, 1, until="empty", url=url, lease=5.0, heartbeat=1.0)

        # On a busy machine, a live lease may expire as well, which costs another attempt.
        assert await ticket.result(wait=0) in {"attempt 2", "attempt 3", "attempt 4"}


async def test_tasks_do_not_wait_for_a_job_that_is_due_tomorrow(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    url = new_url("file", request)
    async with Dibs(url) as app:
        later = await app.queue("double").enqueue(1, delay=timedelta(days=1))
        now = await app.queue("double").enqueue(2)

        run_workers(spark, APP, 1, url=url, processes=0)

        assert 4 == await now.result(wait=0)
        assert "waiting" == (await later.status()).state


def test_workers_end_after_the_given_time(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    began = time.monotonic()

    [report] = run_workers(spark, APP, 1, url=new_url("file", request), until=0.5, processes=0)

    assert time.monotonic() - began >= 0.5
    assert 0 == report.ends["completed"]


def test_invalid_arguments_are_refused(spark: SparkSession) -> None:
    for message, number, until in (("executors is 0", 0, "empty"), ("until is 'soon'", 1, "soon")):
        with pytest.raises(Refused, match=message):
            run_workers(spark, APP, number, until=until, url="file:unused")
    with pytest.raises(Refused, match="exists only in this process"):
        run_workers(spark, APP, 1, url="memory:fleet")


# -- The garbage collector of Spark's Python processes -----------------------------------------------


@pytest.mark.parametrize(("program", "frozen"), [("pyspark.daemon", True), ("pytest.__main__", False)])
def test_only_processes_of_spark_freeze_their_objects(
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    frozen: bool,  # noqa: FBT001
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(program, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    executors._freeze_once.cache_clear()
    before = gc.get_freeze_count()
    try:
        executors.freeze_imports()
        assert frozen == (gc.get_freeze_count() > before)
    finally:
        gc.unfreeze()
        executors._freeze_once.cache_clear()


def test_a_read_of_all_columns_is_no_projection(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("redis", request)
    at(url, fill)

    plan = read(spark, "jobs", url=url)._jdf.queryExecution().analyzed().toString()

    assert "Project" not in plan
