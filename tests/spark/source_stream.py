"""Two streams that follow the log of a queue, one into each sink, as a program that a test can kill.

`python -m tests.spark.source_stream URL FOLDER` runs until it is stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from dibs.spark.java import session
from tests.spark.conftest import SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SINKS: Final = ("parquet", "queue")
#: Events per micro-batch: few, so that the streams are far from done when they are killed.
BATCH: Final = 5


def followed(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    """Return the stream of the log of queue `work`."""
    given = {"url": url, "queue": "work", **options}
    return spark.readStream.format("dibs").options(**given).load()


def into(sink: str, frame: DataFrame, url: str, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start a query into a sink; its checkpoint has the name of the sink."""
    if sink == "parquet":
        writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    else:
        copies = frame.select(f.struct("id", "offset").alias("data"))
        writer = copies.writeStream.format("dibs").options(url=url, queue="copies")
    checkpoint = str(folder / f"{sink}-checkpoint")
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def commits(folder: Path, sink: str) -> int:
    """Return the number of committed micro-batches of a query."""
    done = folder / f"{sink}-checkpoint" / "commits"
    return sum(file.name.isdigit() for file in done.iterdir()) if done.is_dir() else 0


def is_starved(error: PySparkException | None) -> bool:
    """Return whether a query failed because its Python process started too slowly.

    Spark waits ten seconds for the Python process of a stream's source, and has no setting for it. On a
    busy machine the query must be started again.
    """
    return "failed to connect back" in str(error)


def finished(start: Callable[[], StreamingQuery]) -> None:
    """Run a query until it ends, and raise its error."""
    for left in reversed(range(100)):
        try:
            start().awaitTermination()
        except PySparkException as error:
            if left == 0 or not is_starved(error):
                raise
        else:
            return


def main(url: str, folder: Path) -> None:
    spark = session("dibs streams", master="local[2]", config=SMALL)
    events = followed(spark, url, max_events=BATCH)
    running: dict[str, StreamingQuery] = {}
    while True:
        for sink in SINKS:
            query = running.get(sink)
            if query is not None and not query.isActive and not is_starved(query.exception()):
                sys.exit(str(query.exception()))
            if query is None or not query.isActive:
                # Start queries in this thread: Spark finds data sources in Python only if the thread has an
                # active session.
                running[sink] = into(sink, events, url, folder, processingTime="0 seconds")
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
