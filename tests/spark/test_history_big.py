"""A million runs and four million events with a Java heap of one gigabyte: only the tables grow."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.history_day import simulate_day

from dibs.spark.history.increments import update
from dibs.spark.report.figures.summary import create_report
from dibs_conformance.servers import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
async def test_a_million_runs_are_counted_and_read(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    url = f"{redis_server.url}?prefix=big"
    # A quarter of a day is simulated with a quarter of the calls, as each step has more runs.
    planted = await simulate_day(url, runs=1_300_000, hours=6, level="all")

    done = await to_thread(update, url, tmp_path / "warehouse", engine="spark")
    made, _ = create_report(tmp_path / "warehouse")

    assert 1_000_000 < planted.runs == sum(queue.attempts for queue in made.queues)
    assert 4_000_000 < done.events
    assert all(queue.little.agree for queue in made.queues)
    assert planted.outage[1] == made.outages[0].end
    assert [planted.poison] == [(one.queue, one.id) for one in made.poisons]
