"""How long a micro-batch takes: `python -m benchmarks.spark_batches [--events N …] [--sinks NAME …]`.

The log of a queue on a private Redis is followed, a fixed number of events to a batch, into each sink. A
batch with next to nothing in it shows what Spark and its Python processes cost by themselves; `noop` throws
rows away. Prints the median and the slowest of all batches but the first two, ms, and where the time went.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.spark import session
from dibs.storage.registry import open_storage
from dibs_conformance.servers import start_redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS: Final = ("noop", "parquet", "queue")
#: Batches that warm up what has to be.
WARM: Final = 2
#: What Spark says it did, as it calls it: who asks how far the log goes, and who moves the rows.
PHASES: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


async def fill(url: str, events: int) -> None:
    """Let so many jobs run and end well: one event each."""
    async with open_storage(url) as storage:
        lease = (await storage.grant(["work"], 3_600_000, "benchmark")).lease
        for first in range(0, events, 1000):
            ids = [f"id {number}" for number in range(first, min(first + 1000, events))]
            await storage.enqueue("work", [EnqueueRequest(job=NewJob(id=id)) for id in ids])
            claimed = (await storage.claim("work", lease, 1000)).jobs
            done = [Settlement(id=j.id, fence=j.run.fence, action=Complete()) for j in claimed if j.run]
            await storage.settle("work", done)


def batches(spark: SparkSession, url: str, sink: str, events: int, folder: Path) -> list[dict[str, Any]]:
    """Follow the log to its end into one sink, and return what Spark says of each batch."""
    options = {"url": url, "queue": "work", "max_events": str(events)}
    rows = spark.readStream.format("dibs").options(**options).load()
    writer = (rows.select(f.struct("id", "offset").alias("data")) if sink == "queue" else rows).writeStream
    match sink:
        case "queue":
            writer = writer.format("dibs").options(url=url, queue="copies")
        case "parquet":
            writer = writer.format("parquet").option("path", str(folder / f"{events}"))
        case _:
            writer = writer.format("noop")
    checkpoint = str(folder / f"{sink}-{events}-checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return [json.loads(one.json) for one in query.recentProgress if one.numInputRows]


def told(sink: str, events: int, progress: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row of the table."""
    took = [one["durationMs"] for one in progress[WARM:]]
    return {
        "sink": sink,
        "events": events,
        "batches": len(took),
        "median_ms": round(median(one["triggerExecution"] for one in took)),
        "slowest_ms": max(one["triggerExecution"] for one in took),
        **{phase: round(median(one.get(phase, 0) for one in took)) for phase in PHASES},
    }


def measure(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each sink and size of batch."""
    spark = session("dibs batches", master="local[2]", config={"spark.log.level": "ERROR"})
    try:
        with start_redis() as server:
            for events in given.events:
                url = f"{server.url}?prefix=events_{events}"
                asyncio.run(fill(url, events * (given.batches + WARM)))
                for sink in given.sinks:
                    yield told(sink, events, batches(spark, url, sink, events, folder))
    finally:
        spark.stop()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--events", type=int, nargs="+", default=[10, 2000], help="of one batch")
    words.add_argument("--batches", type=int, default=12, help="that count, of each sink and size")
    words.add_argument("--sinks", choices=SINKS, nargs="+", default=SINKS)
    words.add_argument("--json", type=Path)
    given = words.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        rows = []
        for row in measure(given, Path(folder)):
            print(json.dumps(row), flush=True)
            rows.append(row)
    shown = Table("sink", "events", "median ms", "slowest ms", *PHASES, title=f"{given.batches} batches each")
    for row in rows:
        names = ("sink", "events", "median_ms", "slowest_ms", *PHASES)
        shown.add_row(*(str(row[name]) for name in names))
    Console().print(shown)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
