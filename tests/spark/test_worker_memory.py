"""The garbage collector of Spark's Python processes."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from dibs.spark import executors
from dibs.spark.dataframes import read
from tests.spark.source_storages import at, fill
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
