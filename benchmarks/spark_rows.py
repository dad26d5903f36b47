"""Measure rows per second between Spark and a storage: `python -m benchmarks.spark_rows [--rows N] [--rounds
N]`.

Each round also measures baselines with the same rows on the same Postgres: psycopg's COPY in a data
sink in Python, and Spark's JDBC source and sink, if `--jdbc` names a JAR or Debian's
libpostgresql-jdbc-java is installed. They write a plain table with a primary key, without deduplication or
other guarantees, so they are the limit of what a queue can reach. Reads are compared like with like: all
columns of `jobs` with a plain table of as many columns, and the columns id and payload with a plain table of
these two. A source of constant rows shows the limit of every data source in Python. Compare the ratios: the
speed of a shared machine changes by the minute. The CPU time is that of Java, of all Python processes and of
the servers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import functions as f
from rich.table import Table

from benchmarks import report, spark_drivers
from benchmarks.spark_constants import ConstantsSource, frame
from benchmarks.storages import private_servers
from dibs.spark import enqueue, read, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAR: Final = Path("/usr/share/java/postgresql.jar")
#: Bytes of a payload.
PAYLOAD: Final = 100
TABLE: Final = "create table {} (id text primary key, payload bytea)"

#: Reads of each kind in a round.
READS: Final = 3
#: The columns that a plain table of the benchmark has.
PAIR: Final = ("id", "payload")
#: A plain table with the columns of `jobs`.
WIDE: Final = """
create table {table} as
select 'rows' as queue, id, 'waiting' as state, payload, convert_from(payload, 'UTF8') as payload_json,
  '{{}}' as attributes, priority::integer, key, null::text as flow,
  octet_length(memo)::bigint as memo_bytes, to_timestamp(run_at / 1000.0) as run_at,
  to_timestamp(enqueued_at / 1000.0) as enqueued_at, seq, first, revision, enqueues, attempts, retries,
  stalls, timeouts, error ->> 0 as error_type, error ->> 1 as error_message, error ->> 2 as error_traceback,
  fence, holder, to_timestamp(claimed_at / 1000.0) as claimed_at, progress::text, lease is null as handed_off,
  cancel_requested, origin ->> 0 as origin_queue, origin ->> 1 as origin_id
from {schema}.live
"""


class Cost(NamedTuple):
    """The cost of one step: rows a second, and CPU time in us a row of each of `PROCESSES`."""

    rate: float
    cpu: dict[str, float]

    @property
    def whole_cpu(self) -> float:
        """CPU time of all processes together."""
        return sum(self.cpu.values())


#: Kind of process -> a part of the names of its processes; the first match counts.
PROCESSES: Final = {"java": ("java",), "server": ("postgres", "redis-server"), "python": ("",)}
#: Name of a step -> its cost in each repetition.
Costs = dict[str, list[Cost]]


def measure(
    spark: SparkSession, urls: Mapping[str, str], postgres: str, options: argparse.Namespace
) -> Costs:
    """Return the costs of all steps."""
    rows, server = options.rows, postgres.partition("?")[0]
    payload = f.format_string('{"n":%d,"pad":"%s"}', "id", f.lit("x" * (PAYLOAD - 24)))
    ids = spark.range(0, rows, 1, 2)
    jobs = ids.select(
        f.format_string("%032x", "id").alias("id"), f.encode(payload, "utf-8").alias("payload")
    ).cache()
    jobs.count()
    costs: Costs = {}
    for number in range(options.rounds + 1):
        for name, step in steps(spark, urls, server, jobs, jdbc=options.jdbc.exists()).items():
            # A read is short compared with the pauses of a shared machine, so it is repeated.
            for _ in range(READS if " read" in name and number else 1):
                cpu, started = cpu_seconds(), time.perf_counter()
                step()
                seconds, after = time.perf_counter() - started, cpu_seconds()
                # The first round only warms up Java, connection pools and the caches of the servers.
                if number and not name.startswith("("):
                    costs.setdefault(name, []).append(
                        Cost(rows / seconds, {kind: 1e6 * (after[kind] - cpu[kind]) / rows for kind in cpu})
                    )
    return costs


def cpu_seconds() -> dict[str, float]:
    """Return the CPU time by kind of process of this process and all below it."""
    total = dict.fromkeys(PROCESSES, 0.0)
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            name = process.name()
            kind = next(kind for kind, names in PROCESSES.items() if name.startswith(names))
            total[kind] += sum(process.cpu_times()[:4])
    return total


def steps(
    spark: SparkSession, urls: Mapping[str, str], postgres: str, jobs: DataFrame, *, jdbc: bool
) -> dict[str, Callable[[], Any]]:
    """Return the steps of one round in order. Each system writes to a new storage or table, then reads it."""
    suffix = uuid4().hex
    calls: dict[str, Callable[[], Any]] = {}
    for name, url in urls.items():
        write = partial(write_jobs, url)
        calls |= write_steps(f"dibs write {name}", write, jobs, suffix)
        for columns, title in ((None, "all columns"), (PAIR, "2 columns")):
            for tasks in (1, 2):
                calls[f"dibs read {name}, {title}, {tasks} tasks"] = partial(
                    read_jobs, spark, storage_url(url, suffix), tasks, columns
                )
    calls |= baselines(spark, postgres, jobs, suffix, jdbc=jdbc, wide="postgres" in urls)
    for title in ("all", "2"):
        calls[f"constants read, {title} columns"] = partial(read_constants, spark, jobs.count(), title)
    return calls


def write_steps(
    name: str, write: Callable[[DataFrame, str], Any], jobs: DataFrame, suffix: str
) -> dict[str, Callable[[], Any]]:
    """Return a step that is not measured and the write itself.

    Spark ends a Python process that is idle for a minute. The first step starts the processes again, and
    imports what they need, with two rows.
    """
    few = jobs.limit(2).repartition(2)
    return {f"({name}: two rows)": partial(write, few, f"few_{suffix}"), name: partial(write, jobs, suffix)}


def baselines(
    spark: SparkSession, postgres: str, jobs: DataFrame, suffix: str, *, jdbc: bool, wide: bool
) -> dict[str, Callable[[], Any]]:
    """Return the steps without a queue. With `wide`, all columns of the jobs on Postgres are read, too."""
    calls: dict[str, Callable[[], Any]] = {}
    for kind in ("copy", *(("jdbc",) if jdbc else ())):
        with psycopg.connect(postgres) as connection:
            for name in (suffix, f"few_{suffix}"):
                connection.execute(TABLE.format(f"{kind}_{name}"))
        calls |= write_steps(
            f"{kind.upper()} write postgres", partial(write_plain, postgres, kind), jobs, suffix
        )
    all_columns = f"wide_{suffix}"
    if wide:
        # A table of the same rows with the columns of `jobs`, filled before the clock starts.
        calls["(prepare the wide table)"] = partial(copy_jobs, postgres, f"rows_{suffix}", all_columns)
    if jdbc:
        options = jdbc_options(postgres)
        for title, table in (("2", f"jdbc_{suffix}"), *((("all", all_columns),) if wide else ())):
            calls[f"JDBC read postgres, {title} columns"] = partial(
                read_jdbc, spark, options | {"dbtable": table}
            )
        view = options | {"dbtable": f"rows_{suffix}.jobs"}
        for title, columns in (("all", "*"), ("2", "id payload_bytes")) if wide else ():
            calls[f"JDBC read postgres view, {title} columns"] = partial(
                read_jdbc, spark, view, columns.split()
            )
    return calls


def storage_url(url: str, suffix: str) -> str:
    return url.replace("NAME", f"rows_{suffix}")


def write_jobs(url: str, rows: DataFrame, suffix: str) -> None:
    enqueue(rows, "rows", url=storage_url(url, suffix))


def write_plain(url: str, kind: str, rows: DataFrame, suffix: str) -> None:
    """Append rows to a plain table with COPY or JDBC."""
    table = f"{kind}_{suffix}"
    if kind == "jdbc":
        options = jdbc_options(url) | {"dbtable": table, "batchsize": "1000"}
        rows.write.format("jdbc").mode("append").options(**options).save()
    else:
        spark_drivers.write(rows, f"plain_{kind}", url, table)


def copy_jobs(url: str, schema: str, table: str) -> None:
    """Create a plain table with the rows and columns of the table `jobs`; attributes are a text."""
    with psycopg.connect(url) as connection:
        connection.execute(WIDE.format(table=table, schema=schema))


def read_jdbc(spark: SparkSession, options: Mapping[str, str], columns: Sequence[str] = ("*",)) -> None:
    read_to_noop(spark.read.format("jdbc").options(**options).load().select(*columns))


def read_constants(spark: SparkSession, rows: int, columns: str) -> None:
    read_to_noop(frame(spark, rows, columns))


def read_jobs(spark: SparkSession, url: str, tasks: int, columns: Sequence[str] | None) -> None:
    read_to_noop(read(spark, "jobs", url=url, columns=columns, partitions=str(tasks)))


def read_to_noop(frame: DataFrame) -> None:
    """Read all columns of all rows, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def jdbc_options(url: str) -> dict[str, str]:
    """Return the options of Spark's JDBC source for a Postgres URL."""
    parts = conninfo_to_dict(url)
    return {
        "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "user": str(parts["user"]),
        "password": str(parts.get("password") or ""),
        "driver": "org.postgresql.Driver",
    }


def table_rows(costs: Costs) -> list[dict[str, Any]]:
    """Return the medians, and their ratios within a round to COPY for writes and to JDBC for reads.

    Both ratios are above 1 for a step that is better than its baseline.
    """
    table = []
    for name, measured in costs.items():
        baseline = costs.get(baseline_of(name))
        pairs = list(zip(measured, baseline, strict=True)) if baseline else []
        table.append(
            {
                "step": name,
                "rows_per_second": round(median(cost.rate for cost in measured)),
                "ratio": median(a.rate / b.rate for a, b in pairs) if pairs else None,
                "cpu_us_a_row": round(median(cost.whole_cpu for cost in measured), 1),
                "cpu_ratio": median(b.whole_cpu / a.whole_cpu for a, b in pairs) if pairs else None,
                **{
                    f"{kind}_us_a_row": round(median(cost.cpu[kind] for cost in measured), 1)
                    for kind in PROCESSES
                },
            }
        )
    return table


def baseline_of(step: str) -> str:
    """Return the step without a queue that a step is compared with."""
    if " write " in step:
        return "COPY write postgres"
    return f"JDBC read postgres, {'all' if 'all columns' in step else '2'} columns"


def main() -> None:
    """Measure all steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each step (default: 100,000)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measured rounds, after one that warms up (default: 3)"
    )
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    parser.add_argument("--jdbc", type=Path, default=JAR, help="JAR of the JDBC driver of Postgres")
    parser.add_argument("--storages", default="file,redis,postgres", help="storages to measure")
    options = parser.parse_args()
    config = {"spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    if options.jdbc.exists():
        config["spark.driver.extraClassPath"] = str(options.jdbc)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()))
        (redis, postgres), servers = stack.enter_context(private_servers())
        spark = session("dibs rows", master="local[2]", config=config)
        stack.callback(spark.stop)
        spark.dataSource.register(spark_drivers.CopySource)
        spark.dataSource.register(ConstantsSource)
        urls = {"file": f"file:{folder}/NAME", "redis": redis, "postgres": postgres}
        chosen = {name: url for name, url in urls.items() if name in options.storages.split(",")}
        table = table_rows(measure(spark, chosen, urls["postgres"], options))
    show(table, f"{options.rows:,} rows of {PAYLOAD} bytes, {options.rounds} rounds; {servers}")
    report.write_json(options.json, table)


def show(rows: list[dict[str, Any]], title: str) -> None:
    kinds = [f"{kind}_us_a_row" for kind in PROCESSES]
    table = Table("step", "rows/s", "ratio", "us of CPU a row", *PROCESSES, "ratio of CPU", title=title)
    for row in rows:
        ratios = ["" if row[name] is None else f"{row[name]:.2f}" for name in ("ratio", "cpu_ratio")]
        table.add_row(
            row["step"],
            f"{row['rows_per_second']:,}",
            ratios[0],
            *(f"{row[name]}" for name in ("cpu_us_a_row", *kinds)),
            ratios[1],
        )
    report.open_console().print(table)


if __name__ == "__main__":
    main()
