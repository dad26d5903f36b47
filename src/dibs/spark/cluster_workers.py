"""Workers in the tasks of a Spark job, for users whose machines belong to a Spark cluster.

Each task runs one supervisor, as `dibs worker` does. If an executor is lost, its jobs stay claimed until
their lease expires. Then another supervisor, for example the one in the retried task, returns them to the
queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

import msgspec
from msgspec import Struct

from dibs.app import Until
from dibs.client.connection.storage_handle import URL_VARIABLE, resolve_url
from dibs.client.options.arguments import DEFAULT_GRACE, DEFAULT_LEASE, Seconds, duration_ms
from dibs.errors import ConfigurationError, Refused
from dibs.spark.connection import describe_process, shared_url
from dibs.spark.executors import map_partitions
from dibs.storage.addresses import redact_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dibs.app import Dibs


class ExecutorReport(Struct, frozen=True, kw_only=True):
    """The report of one task of `run_workers`: where its worker ran, for how long, and how its runs ended."""

    host: str
    """Host name of the machine that ran the task."""
    process: int
    """Process id of the supervisor."""
    seconds: float
    """Time between start and end of the worker."""
    ends: dict[str, int]
    """Number of runs by the way they ended: completed, failed, retried, released and so on."""


class _WorkerOptions(Struct, frozen=True, kw_only=True):
    """The arguments of a worker, sent from the driver to each task as JSON."""

    application: str
    url: str
    queues: tuple[str, ...] | None
    processes: int
    until: Until
    #: Milliseconds after the start of the task until it stops claiming, with until="stopped".
    stop_after_ms: int | None
    grace: float
    lease: float
    heartbeat: float | None


def run_workers(
    spark: SparkSession,
    application: str,
    executors: int,
    *,
    until: Literal["idle", "empty"] | Seconds = "idle",
    url: str | None = None,
    queues: Sequence[str] | None = None,
    processes: int = 1,
    grace: float = DEFAULT_GRACE,
    lease: float = DEFAULT_LEASE,
    heartbeat: float | None = None,
) -> list[ExecutorReport]:
    """Run the handlers of "module:app" in `executors` tasks of a Spark job, and return their reports.

    `until` has the meaning of `app.work`. With "idle" each task ends when its queues have no due, active or
    blocked job; jobs that are scheduled for later stay, also retries. With "empty" it ends when they have no
    job left, so a job that is due tomorrow keeps the cluster until tomorrow. With a number of seconds each
    task stops claiming that long after its own start, waits up to `grace` seconds for its runs, and releases
    the rest.

    Every executor must be able to import the module and to reach the storage at `url`. The application
    must not set another URL itself. In each task a supervisor renews the lease from outside the
    `processes` that run handlers; with `processes=0` the handlers run in the supervisor's process.

    On a cluster with fewer free slots than `executors`, the remaining tasks start when earlier tasks
    end. Without a free slot, a warning says so every 20 seconds.

    Raise Refused for invalid arguments. An error in a task is raised as Spark's own error, with its
    message.
    """
    if isinstance(executors, bool) or not isinstance(executors, int) or executors < 1:
        raise Refused(f"executors is {executors!r}; it must be an integer of at least 1", field="executors")
    stop_after_ms = _stop_after_ms(until)
    options = _WorkerOptions(
        application=application,
        url=shared_url(resolve_url(url)),
        queues=None if queues is None else tuple(queues),
        processes=processes,
        until="stopped" if stop_after_ms is not None else cast("Until", until),
        stop_after_ms=stop_after_ms,
        grace=grace,
        lease=lease,
        heartbeat=heartbeat,
    )
    encoded = msgspec.json.encode(options)
    tasks = spark.range(0, executors, 1, executors)
    reports = map_partitions(tasks, f"{__name__}:{run_worker_task.__name__}", encoded)
    return [msgspec.json.decode(report, type=ExecutorReport) for report in reports]


def _stop_after_ms(until: Literal["idle", "empty"] | Seconds) -> int | None:
    if isinstance(until, str):
        if until not in ("idle", "empty"):
            raise Refused(f"until is {until!r:.80}; it must be 'idle', 'empty' or seconds", field="until")
        return None
    stop_after_ms = duration_ms("until", until)
    if stop_after_ms <= 0:
        raise Refused(f"until is {until}; it must be more than 0 seconds", field="until")
    return stop_after_ms


def run_worker_task(_rows: object, encoded: bytes) -> bytes:
    """Run a worker in this Spark task until it ends, and return its report as JSON."""
    # Every Python process of Spark imports dibs.spark, but only these tasks need the worker.
    from dibs.worker.processes.app_import import import_app  # noqa: PLC0415

    options = msgspec.json.decode(encoded, type=_WorkerOptions)
    # The application reads its URL from here, in this process and in the processes that run its handlers.
    os.environ[URL_VARIABLE] = options.url
    app = import_app(options.application)
    if app.url != options.url:
        raise ConfigurationError(
            f"{describe_process()} {options.application} sets its own URL, {redact_url(app.url)}, which "
            f"differs from {redact_url(options.url)}. Leave url out, or create the application without a URL"
        )
    return msgspec.json.encode(asyncio.run(_run_worker(options, app)))


async def _run_worker(options: _WorkerOptions, app: Dibs) -> ExecutorReport:
    from dibs.client.work_report import RUN_ENDS  # noqa: PLC0415
    from dibs.worker import run  # noqa: PLC0415

    if options.stop_after_ms is not None:
        # Stop as a worker does on SIGTERM: it claims no more jobs and gives its runs the grace time.
        loop = asyncio.get_running_loop()
        loop.call_later(options.stop_after_ms / 1000, signal.raise_signal, signal.SIGTERM)
    report = await run(
        app,
        queues=options.queues,
        processes=options.processes,
        until=options.until,
        grace=options.grace,
        lease=options.lease,
        heartbeat=options.heartbeat,
        reference=options.application,
    )
    return ExecutorReport(
        host=socket.gethostname(),
        process=os.getpid(),
        seconds=report.seconds,
        ends={end: report.total(end) for end in RUN_ENDS},
    )
