"""Programs of Spark that start with half the CPU time, for tests that start and kill many programs.

Streams into both sinks took 22 s of CPU from their start to their first micro-batches: 9 s of Java, which
loads its classes from 200 files, and 12 s of 18 Python processes, which compile pyspark.zip. Java can
map an archive of loaded classes instead. With a home of Spark without pyspark.zip, the processes import the
installed pyspark, which is compiled. With both, the streams take 13 s of CPU.

`python -m tests.spark.quick_start FOLDER` runs both streams once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyspark
from pyspark import SparkContext

from dibs.spark.java import session
from tests.spark.conftest import SMALL
from tests.spark.source_storages import at, run_some
from tests.spark.source_stream import SINKS, finished, followed, into

ROOT = Path(__file__).parents[2]
#: Java reports each class that it cannot archive.
NO_WARNINGS = "-Xlog:disable"


def quick_environment(folder: Path) -> dict[str, str]:
    """Return variables for programs with Spark. The home of Spark and the archive are in the folder.

    Spark's launcher gives SPARK_SUBMIT_OPTS to Java. A Java that cannot make the archive ignores it later.
    """
    home, archive = folder / "home", folder / "classes.jsa"
    link_home(home)
    options = {
        "SPARK_HOME": str(home),
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={archive} {NO_WARNINGS}",
    }
    command = [sys.executable, "-m", "tests.spark.quick_start", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **options}, check=True, capture_output=True)
    return {**options, "SPARK_SUBMIT_OPTS": f"-XX:SharedArchiveFile={archive} {NO_WARNINGS}"}


def link_home(home: Path) -> None:
    """Make a home of Spark with links to the package pyspark, but without its folder python/lib."""
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)


def main(folder: str) -> None:
    """Run both streams for one event, and wait until Java has ended and written its archive."""
    url = f"file:{folder}/jobs"
    at(url, lambda storage: run_some(storage, "work", ["id"]))
    spark = session("dibs classes", master="local[2]", config=SMALL)
    for sink in SINKS:
        finished(partial(into, sink, followed(spark, url), url, Path(folder), availableNow=True))
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
