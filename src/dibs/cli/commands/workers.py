"""`dibs workers`: list the workers that live, and the holders of active jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import rich_click as click

from dibs.cli import options
from dibs.cli.options import Format
from dibs.cli.output import ExitCode
from dibs.cli.progress import progress_bar
from dibs.cli.storage_access import connect, select_queues
from dibs.cli.tables import format_age, print_in_format
from dibs.client.worker_info import (
    Holder,
    WorkerInfo,
    WorkerRun,
    add_runs,
    busy_queues,
    read_records,
    read_runs,
)
from dibs.storage.protocol import Storage

COLUMNS: Final = (
    "worker", "=address", "=version", "#processes", "#busy", "#active", "#handed off", "=since", "=seen",
    "=longest run", "queues",
)  # fmt: skip
#: Largest number of runs of a worker in the JSON, those with the earliest claims, and of queues in a row.
MOST_RUNS: Final = 10
MOST_QUEUES: Final = 5


@click.command("workers")
@options.queues
@options.url
@options.output
async def command(queues: tuple[str, ...], *, url: str | None, output: Format) -> ExitCode:
    """List the workers that live, with their processes, the jobs that they hold, and their queues.

    The name of a worker is its --name, or host:process id:random digits. `busy` is the part of its capacity
    that its runs take, `since` is the age of the worker, and `seen` the age of its record, which it refreshes
    every 30 s.
    A worker that stops leaves the list at once, and a dead one after three times its lease at most. A row
    with nothing but jobs is a program that holds jobs without a record, for example one that calls `receive`.
    Exit code 1 if a queue does not exist.

    Example:
        dibs workers --url file:./jobs
    """
    async with connect(url) as storage:
        names, code = await select_queues(storage, queues)
        workers = add_runs(await read_records(storage), await _read_runs(storage, names))
    found = [worker for worker in workers if not queues or _concerns(worker, set(queues))]
    print_in_format(
        output,
        {"workers": [_worker_fields(worker) for worker in found]},
        COLUMNS,
        [_worker_row(worker, output) for worker in found],
        optional=("=address", "#handed off", "=longest run"),
        empty="no worker is running",
    )
    return code


async def _read_runs(storage: Storage, queues: Sequence[str]) -> dict[Holder, list[WorkerRun]]:
    busy = await busy_queues(storage, queues)
    found: dict[Holder, list[WorkerRun]] = {}
    done = 0
    with progress_bar("active jobs read", sum(busy.values())) as advance:
        async for holder, run in read_runs(storage, busy):
            found.setdefault(holder, []).append(run)
            done += 1
            advance(done)
    return found


def _concerns(worker: WorkerInfo, queues: set[str]) -> bool:
    return not queues.isdisjoint((*worker.queues, *(run.queue for run in worker.runs)))


def _worker_fields(worker: WorkerInfo) -> dict[str, Any]:
    claims = [run.claimed_at for run in worker.runs]
    return {
        "holder": worker.name,
        "recorded": worker.recorded,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "python": worker.python,
        "processes": worker.processes,
        "capacity": worker.capacity,
        "busy": worker.busy,
        "running": worker.running,
        "ready": worker.ready,
        "stopping": worker.stopping,
        "started_at": _format_time(worker.started_at),
        "seen_at": _format_time(worker.seen_at),
        "expires_at": _format_time(worker.expires_at),
        "lease": worker.lease,
        "active": _count_active(worker),
        "handed_off": len(worker.runs) - _count_active(worker),
        "latest_claim": _format_time(max(claims, default=None)),
        "earliest_claim": _format_time(min(claims, default=None)),
        "queues": _queues(worker),
        "runs": [
            {
                "queue": run.queue,
                "id": run.id,
                "claimed_at": _format_time(run.claimed_at),
                "attempt": run.attempt,
                "handed_off": run.handed_off,
                "cancel_requested": run.cancel_requested,
            }
            for run in worker.runs[:MOST_RUNS]
        ],
    }


def _worker_row(worker: WorkerInfo, output: Format) -> tuple[object, ...]:
    times = (worker.started_at, worker.seen_at, min((run.claimed_at for run in worker.runs), default=None))
    show, queues = (_format_time, _queues(worker)) if output == "lines" else (_age, _first_queues(worker))
    address = f"{worker.host}:{worker.pid}" if worker.recorded else ""
    active = _count_active(worker)
    return (
        worker.name,
        "" if worker.name.startswith(f"{address}:") else address,
        worker.version,
        (len(worker.processes) or 1) if worker.recorded else "",
        f"{100 * worker.busy // worker.capacity} %" if worker.capacity else "",
        active,
        len(worker.runs) - active,
        *(show(moment) or "" for moment in times),
        ", ".join(queues),
    )


def _count_active(worker: WorkerInfo) -> int:
    return sum(not run.handed_off for run in worker.runs)


def _queues(worker: WorkerInfo) -> list[str]:
    """Return the queues that a worker serves, or those of its jobs if it has no record."""
    return sorted(worker.queues if worker.recorded else {run.queue for run in worker.runs})


def _first_queues(worker: WorkerInfo) -> list[str]:
    queues = _queues(worker)
    left = max(worker.queue_count, len(queues)) - MOST_QUEUES
    return queues if left <= 0 else [*queues[:MOST_QUEUES], f"and {left} more"]


def _format_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _age(moment: datetime | None) -> str | None:
    return None if moment is None else format_age((time.time() - moment.timestamp()) * 1000)
