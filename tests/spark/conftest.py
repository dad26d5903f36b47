"""One small Spark session on this machine for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dibs.spark.java import session
from tests.spark.s3_server import BUCKET, ENVIRONMENT, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Two threads, and one retry of a failed task; with local[2] alone, Spark never retries.
MASTER = "local[2,2]"
#: A test has few rows, so compiling queries would take most of its time.
SMALL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.log.level": "ERROR",
    # A small batch size, so that a table of a test has several batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # The Python processes of Spark import the functions of tests too.
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests with Spark in one process under `--dist loadgroup`, as two Sparks need too much
    memory.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the data source `dibs`, started by the first test that uses it."""
    folder: Path = tmp_path_factory.mktemp("spark")
    config = {
        **SMALL,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    spark = session("dibs tests", master=MASTER, config=config)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which programs start Spark with half the CPU time; made in 30 s of CPU."""
    from tests.spark.quick_start import quick_environment

    return quick_environment(tmp_path_factory.mktemp("quick"))


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """The URL of an empty bucket on a real S3 server, which the environment of this process names."""
    with s3_server(), pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["folder", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a new warehouse: a local folder, or an object store."""
    if request.param == "folder":
        return str(tmp_path / "warehouse")
    return f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
