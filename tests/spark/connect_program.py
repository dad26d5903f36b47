"""A client of Spark Connect: it enqueues, works, reads, replays, follows and collects, and writes JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from dibs.spark import enqueue, read, read_stream, replay, run_workers
from dibs.spark.history.increments import update

APP = "tests.spark.source_app:app"


def main(server: str, url: str, folder: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    rows = spark.range(0, 40, 1, 3).selectExpr("cast(id as string) as id", "id as data")
    report = enqueue(rows, "double", url=url, run="monday")
    again = enqueue(rows.repartition(5), "double", url=url, run="monday")
    enqueue(rows.limit(2), "broken", url=url)
    here = enqueue(rows, "here", url="memory:")
    waiting = read(spark, "jobs", url=url).where("queue = 'double' and state = 'waiting'").count()
    workers = run_workers(spark, APP, 2, url=url)
    results = read(spark, "outcomes", url=url, columns=["result_json"]).where("result_json is not null")
    replayed = replay(read(spark, "outcomes", url=url).where("kind = 'failed'"), run="tuesday", url=url)
    query = (
        read_stream(spark, "runs", url=url)
        .writeStream.format("parquet")
        .options(path=f"{folder}/runs", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    increment = update(url, f"{folder}/warehouse", engine="spark")
    found = {
        "rows": report.rows,
        "repeated": again.repeated,
        "here": here.rows,
        "waiting": waiting,
        "completed": sum(worker.ends["completed"] for worker in workers),
        "results": sorted(int(row.result_json) for row in results.collect()),
        "replayed": [one.statuses for one in replayed],
        "followed": spark.read.parquet(f"{folder}/runs").count(),
        "collected": increment.events,
        "stored": read(f"{folder}/warehouse", "runs").count(),
    }
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
