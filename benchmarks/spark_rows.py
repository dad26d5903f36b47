"""Measure rows per second between Spark and a storage: `python -m benchmarks.spark_rows [--rows N] [--rounds
N]`.

Each round also measures two baselines with the same rows on the same Postgres: Spark's JDBC source and sink,
if Debian's libpostgresql-jdbc-java is installed, and psycopg's COPY in a Python data source. Both write a
plain table with a primary key, without deduplication or other guarantees, so they are the limit of what a
queue can reach. Compare the ratios: the speed of a shared machine changes by the minute.
"""

from __future__ import annotations

import argparse
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

from benchmarks import report
from benchmarks.storages import private_servers
from dibs.spark import enqueue, read, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAR: Final = Path("/usr/share/java/postgresql.jar")
#: Bytes of a payload.
PAYLOAD: Final = 100
TABLE: Final = "create table {} (id text primary key, payload bytea)"

#: Name of a step -> rows a second in each round.
Rates = dict[str, list[float]]


class CopyWriter(ds.DataSourceArrowWriter):
    """Copies each partition in one transaction."""

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
    """A data source that writes rows to Postgres with psycopg."""

    @classmethod
    def name(cls) -> str:
        return "plain_copy"

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - the signature is Spark's
        return CopyWriter(self.options)


def measure(spark: SparkSession, urls: Mapping[str, str], rows: int, rounds: int) -> Rates:
    """Return the rates of all steps."""
    payload = f.format_string('{"n":%d,"pad":"%s"}', "id", f.lit("x" * (PAYLOAD - 24)))
    ids = spark.range(0, rows, 1, 2)
    jobs = ids.select(
        f.format_string("%032x", "id").alias("id"), f.encode(payload, "utf-8").alias("payload")
    ).cache()
    jobs.count()
    rates: Rates = {}
    for number in range(rounds + 1):
        for name, step in steps(spark, urls, jobs).items():
            started = time.perf_counter()
            step()
            seconds = time.perf_counter() - started
            # The first round only warms up Java, connection pools and the caches of the servers.
            if number:
                rates.setdefault(name, []).append(rows / seconds)
    return rates


def steps(spark: SparkSession, urls: Mapping[str, str], jobs: DataFrame) -> dict[str, Callable[[], Any]]:
    """Return the steps of one round in order. Each system writes to a new storage or table, then reads it."""
    suffix = uuid4().hex
    calls: dict[str, Callable[[], Any]] = {}
    for name, url in urls.items():
        storage_url = url.replace("NAME", f"rows_{suffix}")
        calls[f"dibs write {name}"] = partial(enqueue, jobs, "rows", url=storage_url)
        calls[f"dibs read {name}, 1 task"] = partial(read_all, spark, storage_url, 1)
        calls[f"dibs read {name}, 2 tasks"] = partial(read_all, spark, storage_url, 2)
    postgres = urls["postgres"].partition("?")[0]
    for kind in ("copy", "jdbc"):
        with psycopg.connect(postgres) as connection:
            connection.execute(TABLE.format(f"{kind}_{suffix}"))
    calls["COPY write postgres"] = lambda: write_copy(jobs, postgres, f"copy_{suffix}")
    if JAR.exists():
        options = jdbc_options(postgres) | {"dbtable": f"jdbc_{suffix}"}
        sink = jobs.write.format("jdbc").mode("append").options(**options, batchsize="1000")
        calls["JDBC write postgres"] = sink.save
        calls["JDBC read postgres"] = lambda: read_to_noop(
            spark.read.format("jdbc").options(**options).load()
        )
    return calls


def read_all(spark: SparkSession, url: str, tasks: int) -> None:
    read_to_noop(read(spark, "jobs", url=url, partitions=str(tasks)))


def read_to_noop(frame: DataFrame) -> None:
    """Read all columns of all rows, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def write_copy(jobs: DataFrame, url: str, table: str) -> None:
    jobs.write.format("plain_copy").mode("append").options(url=url, table=table).save()


def jdbc_options(url: str) -> dict[str, str]:
    """Return the options of Spark's JDBC source for a Postgres URL."""
    parts = conninfo_to_dict(url)
    return {
        "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "user": str(parts["user"]),
        "password": str(parts.get("password") or ""),
        "driver": "org.postgresql.Driver",
    }


def table_rows(rates: Rates) -> list[dict[str, Any]]:
    """Return the medians, and their ratios within a round to COPY for writes and to JDBC for reads."""
    baselines = {"write": "COPY write postgres", "read": "JDBC read postgres"}
    table = []
    for name, measured in rates.items():
        baseline = rates.get(baselines["write" if " write " in name else "read"])
        ratio = median(a / b for a, b in zip(measured, baseline, strict=True)) if baseline else None
        table.append({"step": name, "rows_per_second": round(median(measured)), "ratio": ratio})
    return table


def main() -> None:
    """Measure all steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each step (default: 100,000)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measured rounds, after one that warms up (default: 3)"
    )
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    options = parser.parse_args()
    config = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    if JAR.exists():
        config["spark.driver.extraClassPath"] = str(JAR)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()))
        (redis, postgres), servers = stack.enter_context(private_servers())
        spark = session("dibs rows", master="local[2]", config=config)
        stack.callback(spark.stop)
        spark.dataSource.register(CopySource)
        urls = {"file": f"file:{folder}/NAME", "redis": redis, "postgres": postgres}
        table = table_rows(measure(spark, urls, options.rows, options.rounds))
    show(table, f"{options.rows:,} rows of {PAYLOAD} bytes, {options.rounds} rounds; {servers}")
    report.write_json(options.json, table)


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table("step", "rows/s", "ratio to COPY / JDBC", title=title)
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["step"], f"{row['rows_per_second']:,}", ratio)
    report.open_console().print(table)


if __name__ == "__main__":
    main()
