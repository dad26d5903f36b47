"""A program for spark-submit: it enqueues, works, reads and follows on a cluster, and writes JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dibs.spark import enqueue, read, read_stream, run_workers, session


def main(url: str, folder: str) -> None:
    spark = session()
    report = enqueue(spark.range(0, 40, 1, 2).selectExpr("id as data"), "double", url=url)
    workers = run_workers(spark, "cluster_app:app", 2, url=url)
    results = read(spark, "outcomes", url=url, columns=["result_json"]).collect()
    query = (
        read_stream(spark, "runs", url=url)
        .writeStream.format("parquet")
        .options(path=f"{folder}/runs", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {
        "master": spark.sparkContext.master,
        "setting": spark.conf.get("spark.sql.session.timeZone"),
        "rows": report.rows,
        "completed": sum(worker.ends["completed"] for worker in workers),
        "results": sorted(int(row.result_json) for row in results),
        "followed": spark.read.parquet(f"{folder}/runs").count(),
    }
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
