"""`dibs spark`: keep the history of all runs as Parquet tables, and create a report from them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.errors import UsageError
from dibs.cli.output import print_json, print_lines, print_warning
from dibs.cli.parsing import parse_time
from dibs.cli.queue_names import complete_queue
from dibs.client.options.durations import utc_datetime
from dibs.spark.connection import StorageConnection, shared_url
from dibs.spark.java import require_pyspark, session

if TYPE_CHECKING:
    from dibs.spark.history.increments import Increment

warehouse_option = click.option(
    "--warehouse",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="Folder of the tables.",
)


@click.group("spark")
def command() -> None:
    """Keep the history of all runs as Parquet tables, and create a report from them.

    `history` reads the events of a storage (--url) into the tables. `report` reads the tables only. Both
    print JSON with --json, and need Java and pip install 'dibs[spark]'.

    Example:
        dibs spark history --url file:./jobs --warehouse ./history
    """


@command.command("history")
@warehouse_option
@click.option(
    "--queue",
    metavar="QUEUE",
    multiple=True,
    help="Name of a queue. May be repeated. Default: all queues.",
    shell_complete=complete_queue,
)
@click.option("--follow", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every",
    type=options.Seconds(min=1),
    metavar="DURATION",
    default=60,
    help="With --follow: pause between two increments.",
)
@click.option(
    "--since", metavar="TIME", help="Compute the tables again from this time on; the storage is not read."
)
@click.option("--until", metavar="TIME", help="With --since: compute them up to this time.")
@click.option("--master", metavar="URL", default="local[*]", help="URL of the Spark cluster.")
@options.url
@options.json
def history(
    warehouse: Path,
    *,
    queue: tuple[str, ...],
    follow: bool,
    every: float,
    since: str | None,
    until: str | None,
    master: str,
    url: str | None,
    json: bool,
) -> None:
    """Add the new events of a storage to the tables of a warehouse.

    The tables are events, runs, metrics by minute and ids, partitioned by queue and day. You may stop the
    command at any time: the next call continues where the tables end. A time is written as
    2030-01-31T09:00:00+01:00.

    Example:
        dibs spark history --url file:./jobs --warehouse ./history --follow
    """
    first, last = _parse_span(since, until)
    require_pyspark()
    if first is None:
        # Spark needs seconds to start, so report a wrong URL or a missing server before.
        with StorageConnection(shared_url(url)):
            pass
    # Imported after the checks, because it imports Spark.
    from dibs.spark.history.increments import rerun, update  # noqa: PLC0415

    spark = session("dibs history", master=master, config={"spark.log.level": "ERROR"})
    if first is not None:
        _print_increment(rerun(spark, warehouse, first, last), json=json)
    else:
        _run_increments(partial(update, spark, url, warehouse, queue), every if follow else None, json=json)


@command.command("report")
@warehouse_option
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as an HTML page."
)
@click.option(
    "--wait-p95",
    type=options.Seconds(min=0.001),
    metavar="DURATION",
    default=1.0,
    help="Target of the capacity advice: 95 of 100 jobs wait at most this long.",
)
@options.json
def report(warehouse: Path, *, out: Path | None, wait_p95: float, json: bool) -> None:
    """Create a report of a warehouse: throughput, latency, backlog, failures, ids and capacity.

    The page is one HTML file without external resources. Its top lists outages and ids that fail repeatedly.
    With --json the command prints its numbers. It reads the tables without Spark and without the storage.

    Example:
        dibs spark report --warehouse ./history --out report.html
    """
    if out is None and not json:
        raise UsageError("report needs --out FILE for a page, or --json for the numbers")
    require_pyspark()
    from dibs.spark.report.page import render_page  # noqa: PLC0415
    from dibs.spark.report.summary import create_report  # noqa: PLC0415

    figures, series = create_report(warehouse, round(wait_p95 * 1000))
    if out is not None:
        out.write_text(render_page(figures, series), "utf-8")
    if json:
        print_json(figures)
    else:
        print_lines(
            f"{out}: {sum(queue.attempts for queue in figures.queues):,} attempts "
            f"of {len(figures.queues)} queues"
        )


def _parse_span(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    if until is not None and since is None:
        raise UsageError("--until needs --since: it is the end of the time that --since begins")
    return _parse_moment(since, "--since"), _parse_moment(until, "--until")


def _parse_moment(text: str | None, name: str) -> datetime | None:
    return None if text is None else utc_datetime(parse_time(text, name))


def _run_increments(take: Callable[[], Increment], every: float | None, *, json: bool) -> None:
    """Call `take` once. With `every`, repeat it with pauses of `every` seconds until SIGINT or SIGTERM.

    An increment is one step of `dibs spark history`: it adds the new events of the storage to the tables.
    """
    with _stop_event() as stop:
        while not stop.is_set():
            _print_increment(take(), json=json)
            if every is None:
                return
            stop.wait(every)


@contextmanager
def _stop_event() -> Iterator[Event]:
    """Yield an event that SIGINT or SIGTERM sets, so that the current increment can finish."""
    stop = Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_increment(done: Increment, *, json: bool) -> None:
    for queue in done.gaps:
        print_warning(f"queue {queue!r}: some events were removed from its log before this command read them")
    starts = {queue: json_output.format_time(start) for queue, start in sorted(done.starts.items())}
    if json:
        print_json({"generation": done.generation, "events": done.events, "since": starts, "gaps": done.gaps})
    else:
        print_lines(
            f"generation {done.generation or 'none yet'}: {done.events:,} new events of {len(starts)} queues"
        )
