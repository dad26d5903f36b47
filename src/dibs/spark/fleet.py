"""Workers on a Spark cluster: each task of a Spark job hosts one, under leases and fences as anywhere.

An executor that is lost takes its runs with it; they come back as stalls when its lease has expired, or as
soon as the task runs elsewhere and reaps. For those whose compute is a Spark cluster; everybody else runs
`dibs worker`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from dibs.client.connection.url import URL_VARIABLE, redact_url, resolve_url
from dibs.client.options.durations import Seconds, duration_ms
from dibs.errors import ConfigurationError, Refused
from dibs.spark.door import here, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dibs.client.app import Dibs


class ExecutorReport(Struct, frozen=True, kw_only=True):
    """What one task did, and where."""

    host: str
    process: int
    seconds: float
    #: How many runs came to each end: completed, failed, retried, released and so on.
    ends: dict[str, int]


class _Terms(Struct, frozen=True, kw_only=True):
    """What each task is told. Sent as JSON: it goes from this process to others."""

    application: str
    url: str
    queues: tuple[str, ...] | None
    processes: int
    #: ms from its start until a task claims no more; None is until nothing is left.
    time: int | None
    grace: float
    lease: float
    heartbeat: float


def run_workers(
    spark: SparkSession,
    application: str,
    executors: int,
    *,
    until: Literal["empty"] | Seconds = "empty",
    url: str | None = None,
    queues: Sequence[str] | None = None,
    processes: int = 1,
    grace: float = 30.0,
    lease: float = 15.0,
    heartbeat: float = 5.0,
) -> list[ExecutorReport]:
    """Run the handlers of "module:app" in `executors` tasks of a Spark job, and return what each did.

    until="empty" ends as `app.work` does, when nothing is left to do in these queues; a number of seconds
    lets each task claim no more after that time, counted from its own start, wait the `grace` and release
    the rest. Every executor must be able to import the module and reach the storage at `url`, which
    the application must not name differently itself. In each task a supervisor renews the lease from
    outside the `processes` that run handlers; 0 runs them beside it.

    A cluster with fewer free slots than `executors` starts the remaining ones as others end. Raises Refused
    for what cannot be meant; what fails in a task comes out as Spark's own error with its message.
    """
    if isinstance(executors, bool) or not isinstance(executors, int) or executors < 1:
        raise Refused(f"executors is {executors!r}; it must be a whole number from 1", field="executors")
    terms = _Terms(
        application=application,
        url=place_of(resolve_url(url)),
        queues=None if queues is None else tuple(queues),
        processes=processes,
        time=_time(until),
        grace=grace,
        lease=lease,
        heartbeat=heartbeat,
    )
    told = msgspec.json.encode(terms)
    tasks = spark.sparkContext.parallelize(range(executors), executors)
    reports = tasks.mapPartitions(lambda _: serve(told)).collect()
    return [msgspec.json.decode(report, type=ExecutorReport) for report in reports]


def _time(until: Literal["empty"] | Seconds) -> int | None:
    if isinstance(until, str):
        if until != "empty":
            raise Refused(f"until is {until!r:.80}; it must be 'empty' or seconds", field="until")
        return None
    time = duration_ms("until", until)
    if time <= 0:
        raise Refused(f"until is {until}; it must be more than 0 seconds", field="until")
    return time


def serve(told: bytes) -> Iterator[bytes]:
    """Be a worker for the length of one task, in the task, and yield its report."""
    # Every process of Spark's imports dibs.spark, and only these few work.
    from dibs.worker.processes.app_import import import_app  # noqa: PLC0415

    terms = msgspec.json.decode(told, type=_Terms)
    # For the application, wherever it is imported: in this process, and in those that run its handlers.
    os.environ[URL_VARIABLE] = terms.url
    app = import_app(terms.application)
    if app.url != terms.url:
        raise ConfigurationError(
            f"{here()} {terms.application} names its place itself ({redact_url(app.url)}), and it is not "
            f"{redact_url(terms.url)}: leave url out, or make the application without a URL"
        )
    yield msgspec.json.encode(asyncio.run(_work(terms, app)))


async def _work(terms: _Terms, app: Dibs) -> ExecutorReport:
    from dibs.client.work_report import RUN_ENDS  # noqa: PLC0415
    from dibs.worker import run  # noqa: PLC0415 - as above

    if terms.time is not None:
        # As whoever stops a worker would: it claims no more, and gives what runs its grace.
        loop = asyncio.get_running_loop()
        loop.call_later(terms.time / 1000, signal.raise_signal, signal.SIGTERM)
    report = await run(
        app,
        queues=terms.queues,
        processes=terms.processes,
        until="empty" if terms.time is None else "stopped",
        grace=terms.grace,
        lease=terms.lease,
        heartbeat=terms.heartbeat,
        reference=terms.application,
    )
    return ExecutorReport(
        host=socket.gethostname(),
        process=os.getpid(),
        seconds=report.seconds,
        ends={word: report.total(word) for word in RUN_ENDS},
    )
