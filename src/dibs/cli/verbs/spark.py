"""`dibs spark`: the history of every run as tables, and a report that is drawn from them."""

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

from dibs.cli import options, shapes
from dibs.cli.output import say, warn, write_json
from dibs.cli.refusals import WrongWords
from dibs.cli.words import time_of
from dibs.client.options.durations import utc_datetime
from dibs.spark.door import Door, place_of
from dibs.spark.java import require_pyspark, session

if TYPE_CHECKING:
    from dibs.spark.history.increments import Increment

tables = click.option(
    "--warehouse",
    type=click.Path(path_type=Path),
    metavar="DIR",
    required=True,
    help="The folder of the tables.",
)


@click.group("spark")
def command() -> None:
    """Keep the history of every run as Parquet tables, and draw a report of it.

    history takes the place as --url, like other verbs; both take --json.

    Example: dibs spark history --url file:./jobs --warehouse ./history
    """


@command.command("history")
@tables
@click.option("--queue", metavar="QUEUE", multiple=True, help="Only this queue; may be repeated.")
@click.option("--follow", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--every",
    type=options.Seconds(min=1),
    metavar="SECONDS",
    default=60,
    help="How long --follow rests between increments.",
)
@click.option("--since", metavar="TIME", help="Ask no storage: make the tables again from here on.")
@click.option("--until", metavar="TIME", help="With --since: up to here.")
@click.option("--master", metavar="URL", default="local[*]", help="The Spark to run on.")
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
    """Take what has happened since the last time into the tables of a warehouse.

    events, runs, metrics by minute, ids: partitioned by queue and day, readable by anything that reads
    Parquet. It may be stopped at any moment; the next call goes on from where the tables are.

    Example: dibs spark history --url file:./jobs --warehouse ./history --follow
    """
    first, last = _span(since, until)
    require_pyspark()
    if first is None:
        # Starting Spark takes seconds: what is mistyped, or away, is said before.
        with Door(place_of(url)):
            pass
    # Only now: it imports Spark.
    from dibs.spark.history.increments import rerun, update  # noqa: PLC0415

    spark = session("dibs history", master=master, config={"spark.log.level": "ERROR"})
    if first is not None:
        _tell(rerun(spark, warehouse, first, last), json=json)
    else:
        _keep_up(partial(update, spark, url, warehouse, queue), every if follow else None, json=json)


@command.command("report")
@tables
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the page here.")
@click.option(
    "--wait-p95",
    type=options.Seconds(min=0.001),
    metavar="SECONDS",
    default=1.0,
    help="What the capacity advice is to reach.",
)
@options.json
def report(warehouse: Path, *, out: Path | None, wait_p95: float, json: bool) -> None:
    """Draw a page from a warehouse: throughput, latency, backlog, failures, ids and capacity.

    One file that needs no network; outages and ids that keep failing are named at its top. With --json the
    figures are printed. Neither Spark nor the storage is asked.

    Example: dibs spark report --warehouse ./history --out report.html
    """
    if out is None and not json:
        raise WrongWords("say where the page goes with --out FILE, or ask for the figures with --json")
    require_pyspark()
    from dibs.spark.report.page import page  # noqa: PLC0415
    from dibs.spark.report.summary import report as made_of  # noqa: PLC0415

    made, series = made_of(warehouse, round(wait_p95 * 1000))
    if out is not None:
        out.write_text(page(made, series), "utf-8")
    if json:
        write_json(made)
    else:
        say(f"{out}: {sum(queue.attempts for queue in made.queues):,} attempts of {len(made.queues)} queues")


def _span(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    if until is not None and since is None:
        raise WrongWords("--until says where --since ends; it makes no sense alone")
    return _moment(since, "--since"), _moment(until, "--until")


def _moment(text: str | None, name: str) -> datetime | None:
    return None if text is None else utc_datetime(time_of(text, name))


def _keep_up(take: Callable[[], Increment], every: float | None, *, json: bool) -> None:
    """Take in an increment, and unless `every` is None another after each rest, until told to stop."""
    with _stoppable() as stop:
        while not stop.is_set():
            _tell(take(), json=json)
            if every is None:
                return
            stop.wait(every)


@contextmanager
def _stoppable() -> Iterator[Event]:
    """Give what the first signal to stop sets: the increment that is being made is finished."""
    stop = Event()

    def told(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(done: Increment, *, json: bool) -> None:
    for queue in done.gaps:
        warn(f"queue {queue!r}: some events were trimmed from its log before they were read")
    starts = {queue: shapes.time(start) for queue, start in sorted(done.starts.items())}
    if json:
        write_json({"generation": done.generation, "events": done.events, "since": starts, "gaps": done.gaps})
    else:
        say(f"generation {done.generation or 'none yet'}: {done.events:,} new events of {len(starts)} queues")
