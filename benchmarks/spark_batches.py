"""Measure Spark's micro-batches: `python -m benchmarks.spark_batches [--events N …] [--sinks NAME …]`.

Streams the event log of a queue on a private Redis into each sink, with a fixed number of events a batch. A
batch with few events shows the cost of Spark and its Python processes; the sink `noop` discards the rows.
Prints p50, p99 and the slowest batch in ms, without the first two, and the medians of Spark's phases.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from benchmarks import report
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.spark import session
from dibs.storage.registry import open_storage
from dibs_conformance.servers import start_redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS: Final = ("noop", "parquet", "queue")
#: Batches before the measured ones. They start Java, Python processes and caches.
WARM_UP: Final = 2
#: Spark's names of its phases. latestOffset asks for the end of the log; addBatch moves the rows.
PHASES: Final = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


async def fill(url: str, events: int) -> None:
    """Enqueue, claim and complete `events` jobs. Each job adds one event to the log."""
    async with open_storage(url) as storage:
        lease = (await storage.grant(["work"], 3_600_000, "benchmark")).lease
        for first in range(0, events, 1000):
            ids = [f"id {number}" for number in range(first, min(first + 1000, events))]
            await storage.enqueue("work", [EnqueueRequest(job=NewJob(id=id)) for id in ids])
            claimed = (await storage.claim("work", lease, 1000)).jobs
            settlements = [
                Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in claimed if job.run
            ]
            await storage.settle("work", settlements)


def run_stream(spark: SparkSession, url: str, sink: str, events: int, folder: Path) -> list[dict[str, Any]]:
    """Stream the whole log into one sink. Return Spark's progress report of each batch with rows."""
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


def row(sink: str, events: int, progress: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a sink and batch size."""
    durations = [one["durationMs"] for one in progress[WARM_UP:]]
    batches = [one["triggerExecution"] for one in durations]
    percentiles = quantiles(batches, n=100, method="inclusive")
    return {
        "sink": sink,
        "events": events,
        "batches": len(durations),
        "p50_ms": round(percentiles[49]),
        "p99_ms": round(percentiles[98]),
        "slowest_ms": max(batches),
        **{phase: round(median(one.get(phase, 0) for one in durations)) for phase in PHASES},
    }


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch size and sink."""
    kept = str(options.batches + WARM_UP)
    config = {"spark.log.level": "ERROR", "spark.sql.streaming.numRecentProgressUpdates": kept}
    spark = session("dibs batches", master="local[2]", config=config)
    try:
        with start_redis() as server:
            for events in options.events:
                url = f"{server.url}?prefix=events_{events}"
                asyncio.run(fill(url, events * (options.batches + WARM_UP)))
                for sink in options.sinks:
                    yield row(sink, events, run_stream(spark, url, sink, events, folder))
    finally:
        spark.stop()


def main() -> None:
    """Measure and print a line of JSON for each row, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--events", type=int, nargs="+", default=[10, 2000], help="events of a batch (default: 10 2000)"
    )
    parser.add_argument(
        "--batches", type=int, default=100, help="measured batches of each sink and size (default: 100)"
    )
    parser.add_argument("--sinks", choices=SINKS, nargs="+", default=SINKS, help="measure only these sinks")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        rows = []
        for measured in measure(options, Path(folder)):
            print(json.dumps(measured), flush=True)
            rows.append(measured)
    table = Table(
        "sink", "events", "p50 ms", "p99 ms", "slowest ms", *PHASES, title=f"{options.batches} batches each"
    )
    for measured in rows:
        keys = ("sink", "events", "p50_ms", "p99_ms", "slowest_ms", *PHASES)
        table.add_row(*(str(measured[key]) for key in keys))
    Console().print(table)
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
