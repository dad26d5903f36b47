"""`dibs spark`: keep the history of all runs as tables of Delta Lake, and create a report from them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Literal, get_args

import rich_click as click

from dibs.cli import json_output, options
from dibs.cli.completion import complete_queue
from dibs.cli.errors import UsageError, error_message
from dibs.cli.output import print_json, print_lines, print_warning
from dibs.cli.parsing import parse_time
from dibs.cli.storage_access import import_application
from dibs.client.options.arguments import utc_datetime
from dibs.errors import ConfigurationError, DibsError, Refused, StorageTooNew
from dibs.spark.connection import StorageConnection, shared_url
from dibs.spark.java import is_submitted, require_pyarrow, session

if TYPE_CHECKING:
    from dibs.spark.history.increments import Increment


EngineName = Literal["auto", "spark", "duckdb"]

warehouse_option = click.option(
    "--warehouse",
    metavar="LOCATION",
    required=True,
    help="Folder of the tables, or a URL such as s3://bucket/folder.",
)


@click.group("spark")
def command() -> None:
    """Keep the history of all runs as tables of Delta Lake, and create a report from them.

    `history` reads the events of a storage (--url) into the tables. `report` reads the tables only. Both
    print JSON with --json, and need pip install 'dibs[history]', or 'dibs[spark]' for Apache Spark.

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
@click.option(
    "--attribute",
    metavar="NAME",
    multiple=True,
    help="Add this attribute of the jobs to their events and runs. May be repeated.",
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
    "--keep",
    type=options.Seconds(min=1),
    metavar="DURATION",
    help="Delete events and metrics that are older, in steps of a day. Default: keep all.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Continue a warehouse with the storage to which dibs move has moved the jobs.",
)
@click.option(
    "--since", metavar="TIME", help="Count the metrics again from this time on; the storage is not read."
)
@click.option("--until", metavar="TIME", help="With --since: count them up to this time.")
@click.option(
    "--master",
    metavar="URL",
    help="URL of the Spark cluster. Default: that of spark-submit, else this machine (local[*]).",
)
@click.option(
    "--conf",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a property of Spark. May be repeated.",
)
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    default="auto",
    help="Program that computes the tables. auto: DuckDB if it is installed, and Spark with "
    "--master, --conf or spark-submit.",
)
@options.url
@options.json
def history(
    warehouse: str,
    *,
    queue: tuple[str, ...],
    attribute: tuple[str, ...],
    follow: bool,
    every: float,
    keep: float | None,
    adopt: bool,
    since: str | None,
    until: str | None,
    master: str | None,
    conf: tuple[str, ...],
    engine: EngineName,
    url: str | None,
    json: bool,
) -> None:
    """Add the new events of a storage to the tables of a warehouse.

    The tables are events, live jobs and metrics by minute. You may stop the command at any time: the next
    call continues where the tables end. A time is written as 2030-01-31T09:00:00+01:00.

    Example:
        dibs spark history --url file:./jobs --warehouse ./history --follow
    """
    first, last = _parse_span(since, until)
    settings = dict(map(_parse_setting, conf))
    require_pyarrow()
    from dibs.spark.history.engines import choose_engine  # noqa: PLC0415 - needs pyarrow
    from dibs.spark.history.increments import rerun, update  # noqa: PLC0415
    from dibs.spark.history.warehouse import warehouse_location  # noqa: PLC0415

    warehouse_location(warehouse)
    wants_spark = master is not None or settings or is_submitted()
    chosen = choose_engine("spark" if engine == "auto" and wants_spark else engine)
    if first is None and not follow:
        # Spark needs seconds to start, so report a wrong URL or a missing server before.
        with StorageConnection(shared_url(url)):
            pass

    def take() -> Increment:
        if chosen == "spark":
            # Each increment asks for the session, because Java may have ended in between.
            session("dibs history", master=master, config={"spark.log.level": "ERROR", **settings})
        if first is not None:
            return rerun(warehouse, first, last, engine=chosen)
        return update(url, warehouse, queue, engine=chosen, keep=keep, adopt=adopt, attributes=attribute)

    with _stop_event() as stop:
        if follow and first is None:
            _follow(take, every, stop, json=json)
        else:
            _print_increment(take(), json=json)


@command.command("report")
@click.argument(
    "application",
    metavar="[MODULE:APP]",
    required=False,
    help="The application, as package.module:app. The capacity advice then uses the sizes of its handlers.",
)
@warehouse_option
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as an HTML page."
)
@click.option("--since", metavar="TIME", help="Begin of the window. Default: 28 days before its end.")
@click.option("--until", metavar="TIME", help="End of the window. Default: that of the history.")
@click.option("--tz", metavar="ZONE", default="UTC", help="Time zone of the page, as in Europe/Berlin.")
@click.option(
    "--by",
    metavar="GROUP",
    default="",
    help="Compare the attempts by key, flow, error, or attributes.NAME.",
)
@click.option(
    "--objective",
    type=float,
    metavar="SHARE",
    help="Share of the attempts that shall not fail, as 0.999; the page then has the burn rate.",
)
@click.option(
    "--wait-p95",
    type=options.Seconds(min=0.001),
    metavar="DURATION",
    default=1.0,
    help="Target of the capacity advice: 95 of 100 jobs wait at most this long.",
)
@click.option(
    "--refresh",
    type=options.Seconds(min=1),
    metavar="DURATION",
    help="Let the page reload itself this often. The command ends; run it again to write the page again.",
)
@options.json
def report(
    application: str | None,
    warehouse: str,
    *,
    out: Path | None,
    since: str | None,
    until: str | None,
    tz: str,
    by: str,
    objective: float | None,
    wait_p95: float,
    refresh: float | None,
    json: bool,
) -> None:
    """Create a report of a warehouse: throughput, latency, backlog, failures, ids and capacity.

    The page is one HTML file without external resources. Its top lists outages and ids that fail repeatedly.
    With --json the command prints its numbers. It reads the tables without Spark and without the storage.

    Example:
        dibs spark report --warehouse ./history --out report.html
    """
    if out is None and not json:
        raise UsageError("report needs --out FILE for a page, or --json for the numbers")
    if refresh is not None and out is None:
        raise UsageError("--refresh needs --out FILE: it is the page that reloads itself")
    require_pyarrow()
    from dibs.spark.report.figures.summary import ReportOptions, create_report  # noqa: PLC0415
    from dibs.spark.report.page.render import render_page  # noqa: PLC0415

    sizes = import_application(application).handlers.sizes() if application else {}
    options_of_report = ReportOptions(
        target_wait_p95_ms=round(wait_p95 * 1000),
        sizes=sizes,
        since=None if since is None else parse_time(since, "--since"),
        until=None if until is None else parse_time(until, "--until"),
        zone=tz,
        by=by,
        objective=objective,
    )
    figures, series = create_report(warehouse, options_of_report)
    if out is not None:
        _replace_file(out, render_page(figures, series, refresh=refresh))
    if json:
        print_json(figures)
    else:
        print_lines(
            f"{out}: {sum(queue.attempts for queue in figures.queues):,} attempts "
            f"of {len(figures.queues)} queues"
        )


def _replace_file(file: Path, text: str) -> None:
    """Write a file in one step, because a page that reloads itself must not read half of it."""
    written = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        written.write_text(text, "utf-8")
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise UsageError(f"--conf is {text!r:.80}; write a property of Spark as spark.executor.memory=4g")
    return name, value


def _parse_span(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    if until is not None and since is None:
        raise UsageError("--until needs --since: it is the end of the time that --since begins")
    return _parse_moment(since, "--since"), _parse_moment(until, "--until")


def _parse_moment(text: str | None, name: str) -> datetime | None:
    return None if text is None else utc_datetime(parse_time(text, name))


def _follow(take: Callable[[], Increment], every: float, stop: Event, *, json: bool) -> None:
    """Call `take` with pauses of `every` seconds until `stop` is set.

    An error that may be gone at the next increment is printed, for example a server that restarts.
    """
    while not stop.is_set():
        try:
            done = take()
        except Exception as error:
            if _is_permanent(error):
                raise
            print_warning(f"this increment failed; the next one starts in {every:g} s: {_reason(error)}")
        else:
            _print_increment(done, json=json)
        stop.wait(every)


def _reason(error: Exception) -> str:
    """Return the message of an error, or its class and first line if it comes from another library."""
    if isinstance(error, (DibsError, OSError)):
        return error_message(error)
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _is_permanent(error: Exception) -> bool:
    """Return whether each later increment would raise this error too."""
    if isinstance(error, (ConfigurationError, StorageTooNew)):
        return True
    from dibs.spark.history.warehouse import WarehouseBusy  # noqa: PLC0415 - needs deltalake

    return isinstance(error, Refused) and not isinstance(error, WarehouseBusy)


@contextmanager
def _stop_event() -> Iterator[Event]:
    """Yield an event that SIGINT or SIGTERM sets, so that the current increment can finish.

    Java must get neither signal: `session` starts it in a process group of its own.
    """
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
