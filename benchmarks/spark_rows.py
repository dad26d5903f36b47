"""Rows per second between Spark and a storage: `python -m benchmarks.spark_rows [--rows N] [--rounds N]`.

Beside it in every round, against the same Postgres and with the same rows: Spark's own JDBC source and sink
(where Debian's libpostgresql-jdbc-java is installed), and psycopg's COPY inside a source of our own kind.
Both fill a bare table with a primary key: they accept no jobs, know no row again and promise nothing, and
so they bound what a queue could reach. Read the ratios: the machine changes by the minute.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from rich.table import Table

from benchmarks.servers import private_servers
from dibs.cli import output
from dibs.spark import enqueue, read, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAR: Final = Path("/usr/share/java/postgresql.jar")
#: Bytes of a payload.
PAYLOAD: Final = 100
BARE: Final = "create table {} (id text primary key, payload bytea)"

Measured = dict[str, list[float]]


class CopyWriter(ds.DataSourceArrowWriter):
    """COPY of each partition, as one transaction."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._url, self._table = options["url"], options["table"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        statement = f"copy {self._table} (id, payload) from stdin (format binary)"
        with psycopg.connect(self._url) as connection, connection.cursor().copy(statement) as copy:
            copy.set_types(["text", "bytea"])
            for batch in iterator:
                ids, payloads = (column.to_pylist() for column in batch.columns)
                for row in zip(ids, payloads, strict=True):
                    copy.write_row(row)
        return ds.WriterCommitMessage()


class CopySource(ds.DataSource):
    """What somebody would write who wants rows in Postgres and has psycopg."""

    @classmethod
    def name(cls) -> str:
        return "bare_copy"

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - Spark's own
        return CopyWriter(self.options)


def measure(spark: SparkSession, urls: Mapping[str, str], rows: int, rounds: int) -> Measured:
    """Return the rates of every round, by what was measured."""
    payload = f.format_string('{"n":%d,"pad":"%s"}', "id", f.lit("x" * (PAYLOAD - 24)))
    ids = spark.range(0, rows, 1, 2)
    jobs = ids.select(
        f.format_string("%032x", "id").alias("id"), f.encode(payload, "utf-8").alias("payload")
    ).cache()
    jobs.count()
    rates: Measured = {}
    for number in range(rounds + 1):
        for name, work in steps(spark, urls, jobs).items():
            began = time.perf_counter()
            work()
            took = time.perf_counter() - began
            # The first round warms up what has to be: Java, pools, the servers' caches.
            if number:
                rates.setdefault(name, []).append(rows / took)
    return rates


def steps(spark: SparkSession, urls: Mapping[str, str], jobs: DataFrame) -> dict[str, Callable[[], Any]]:
    """Return what is to be timed in one round, in order: each into, then from, a place of its own."""
    place = uuid4().hex
    found: dict[str, Callable[[], Any]] = {}
    for name, url in urls.items():
        there = url.replace("PLACE", f"rows_{place}")
        found[f"dibs write {name}"] = partial(enqueue, jobs, "rows", url=there)
        found[f"dibs read {name}, 1 task"] = partial(read_all, spark, there, 1)
        found[f"dibs read {name}, 2 tasks"] = partial(read_all, spark, there, 2)
    bare = urls["postgres"].partition("?")[0]
    for kind in ("copy", "jdbc"):
        with psycopg.connect(bare) as connection:
            connection.execute(BARE.format(f"{kind}_{place}"))
    found["COPY write postgres"] = lambda: copied(jobs, bare, f"copy_{place}")
    if JAR.exists():
        options = jdbc(bare) | {"dbtable": f"jdbc_{place}"}
        sink = jobs.write.format("jdbc").mode("append").options(**options, batchsize="1000")
        found["JDBC write postgres"] = sink.save
        found["JDBC read postgres"] = lambda: spend(spark.read.format("jdbc").options(**options).load())
    return found


def read_all(spark: SparkSession, url: str, tasks: int) -> None:
    spend(read(spark, "jobs", url=url, partitions=str(tasks)))


def spend(frame: DataFrame) -> None:
    """Have every column of every row made, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def copied(jobs: DataFrame, url: str, table: str) -> None:
    jobs.write.format("bare_copy").mode("append").options(url=url, table=table).save()


def jdbc(url: str) -> dict[str, str]:
    """Return the same address as JDBC has it."""
    parts = conninfo_to_dict(url)
    return {
        "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "user": str(parts["user"]),
        "password": str(parts.get("password") or ""),
        "driver": "org.postgresql.Driver",
    }


def rows_of(rates: Measured) -> list[dict[str, Any]]:
    """Return the medians, beside COPY for what is written and JDBC for what is read, within each round."""
    beside = {"write": "COPY write postgres", "read": "JDBC read postgres"}
    table = []
    for name, measured in rates.items():
        other = rates.get(beside["write" if " write " in name else "read"])
        ratio = median(a / b for a, b in zip(measured, other, strict=True)) if other else None
        table.append({"what": name, "rows_per_second": round(median(measured)), "ratio": ratio})
    return table


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--rows", type=int, default=100_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--json", type=Path)
    given = words.parse_args()
    config = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    if JAR.exists():
        config["spark.driver.extraClassPath"] = str(JAR)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()))
        (redis, postgres), about = stack.enter_context(private_servers())
        spark = session("dibs rows", master="local[2]", config=config)
        stack.callback(spark.stop)
        spark.dataSource.register(CopySource)
        urls = {"file": f"file:{folder}/PLACE", "redis": redis, "postgres": postgres}
        table = rows_of(measure(spark, urls, given.rows, given.rounds))
    show(table, f"{given.rows:,} rows of {PAYLOAD} bytes, {given.rounds} rounds; {about}")
    if given.json:
        given.json.write_text(json.dumps(table, indent=2) + "\n", "utf-8")


def show(table: list[dict[str, Any]], title: str) -> None:
    shown = Table("what", "rows/s", "beside COPY / JDBC", title=title)
    for row in table:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        shown.add_row(row["what"], f"{row['rows_per_second']:,}", ratio)
    output.console().print(shown)


if __name__ == "__main__":
    main()
