"""One Spark for all tests of a process: small, quiet, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.spark.java import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Two threads, and a task that fails is tried once more: local[2] alone never tries again.
MASTER = "local[2,2]"
#: A test has few rows: compiling for many would take nearly all of its time.
SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
    # So that a table of a test has more than one batch.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # What a test gives Spark to run is imported in its Python processes, too.
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one process starts Spark and runs all that needs it; two would be too many."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the source `dibs`; started by the first test that asks."""
    place: Path = tmp_path_factory.mktemp("spark")
    config = {
        **SMALL,
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
    }
    spark = session("dibs tests", master=MASTER, config=config)
    yield spark
    spark.stop()
