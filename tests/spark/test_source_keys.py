"""The columns `key`, `flow` and `memo_bytes` of the tables `jobs` and `outcomes`, on each storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import datasource as ds

from dibs.spark.dataframes import read
from tests.spark.keyed_jobs import JOBS, OUTCOMES, fill_keyed
from tests.spark.source_storages import SHARED, at
from tests.spark.test_source_read import rows_of
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("key", "flow", "memo_bytes")


@pytest.mark.parametrize("scheme", SHARED)
def test_they_are_those_of_the_records(request: pytest.FixtureRequest, scheme: str) -> None:
    url = new_url(scheme, request)
    at(url, fill_keyed)

    jobs = {(row["id"], row["state"]): tuple(row[name] for name in NAMES) for row in rows_of(url, "jobs")}
    ends = {row["id"]: tuple(row[name] for name in NAMES) for row in rows_of(url, "outcomes")}

    assert JOBS == jobs
    assert OUTCOMES == {id: ends[id] for id in OUTCOMES}
    assert "flow 1" == ends["shared"][1]


@pytest.mark.parametrize("scheme", ["file", "postgresql"])
def test_filters_compare_them(request: pytest.FixtureRequest, scheme: str) -> None:
    url = new_url(scheme, request)
    at(url, fill_keyed)
    same = [ds.EqualTo(("key",), "ada"), ds.EqualTo(("flow",), "flow 1"), ds.GreaterThan(("memo_bytes",), 4)]

    assert ["busy"] == [row["id"] for row in rows_of(url, "jobs", same, columns=("id", "revision"))]
    assert ["failed"] == [row["id"] for row in rows_of(url, "outcomes", same, columns=("id", "revision"))]


def test_spark_reads_them_also_from_memory(spark: SparkSession) -> None:
    url = "memory:keys-read-by-spark"
    at(url, fill_keyed)

    jobs = read(spark, "jobs", url=url).select("id", "state", *NAMES).collect()
    assert JOBS == {(row.id, row.state): tuple(row[name] for name in NAMES) for row in jobs}
    outcomes = read(spark, "outcomes", url=url, columns=["id", "flow"]).where("flow is not null").collect()
    assert {"failed", "done", "shared", "flow 1/h0abc/0"} == {row.id for row in outcomes}
