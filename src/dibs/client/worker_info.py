"""`WorkerInfo`, which `app.workers` returns, read from the records of workers and from the active jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from dibs.client.options.durations import utc_datetime
from dibs.model.job import Outcome
from dibs.model.worker_record import (
    WORKERS_QUEUE,
    WorkerRecord,
    WorkerState,
    decode_record,
    without_reserved,
)
from dibs.storage.protocol import Storage

#: Records that one call reads, and active jobs: each of these comes with its payload, up to 1 MiB.
RECORDS_PAGE: Final = 1000
JOBS_PAGE: Final = 100


class WorkerRun(Struct, frozen=True, kw_only=True):
    """An active job of a worker."""

    queue: str
    """Name of the queue."""
    id: str
    """Id of the job."""
    claimed_at: datetime
    """Time of the claim, in UTC."""
    attempt: int
    """Number of claims of the job so far."""
    handed_off: bool
    """True if the worker handed the run off, so that another program ends it."""
    cancel_requested: bool
    """True if the run was asked to stop."""


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker: one call of `app.work` or one `dibs worker`, with its processes. Times are in UTC.

    A worker refreshes its record every 30 seconds, or every two leases if that is shorter. `processes`,
    `capacity`, `busy`, `running`, `ready` and `stopping` are those of `seen_at`.
    """

    name: str
    """Name of the worker, as in `Status.holder`. Several workers may have the same name."""
    recorded: bool = True
    """False for a holder of active jobs without a record: its other fields are empty. It may be a program
    that uses `receive`, or a dead worker whose lease has not expired."""
    host: str = ""
    """Name of its machine."""
    pid: int = 0
    """Process id of its supervisor."""
    version: str = ""
    """Version of dibs."""
    python: str = ""
    """Version of Python."""
    queues: tuple[str, ...] = ()
    """Names of the queues that it serves. The last ones are missing if all names have about 1 MB."""
    queue_count: int = 0
    """Number of the queues that it serves."""
    processes: tuple[int, ...] = ()
    """Process ids of its worker processes; empty if it runs the jobs in the process `pid`."""
    capacity: int = 0
    """Capacity units of its processes: 100 each."""
    busy: int = 0
    """Capacity units of the runs that it held."""
    running: int = 0
    """Number of runs that it held."""
    ready: bool = False
    """True if it could claim jobs."""
    stopping: bool = False
    """True after a stop signal."""
    started_at: datetime | None = None
    """Time of its start."""
    seen_at: datetime | None = None
    """Time of the last refresh of its record."""
    expires_at: datetime | None = None
    """Time at which it leaves the list, unless it refreshes its record."""
    lease: float = 0.0
    """Seconds from its last heartbeat until its jobs return to the queue."""
    settings: Mapping[str, Mapping[str, Any]] = {}
    """Settings that its tasks declare for their queues, by queue and name, as the storage keeps them."""
    runs: tuple[WorkerRun, ...] = ()
    """Its active jobs by the time of their claim, with `app.workers(runs=True)`. Workers with the same name
    all have the runs of this name."""


async def read_workers(storage: Storage, *, runs: bool = False) -> list[WorkerInfo]:
    """Return the workers that live, by name and start. With `runs`, also read all active jobs.

    Raise StorageError.
    """
    workers = await read_records(storage)
    if not runs:
        return workers
    names = [info.name for info in without_reserved(await storage.queues())]
    by_holder: dict[str, list[WorkerRun]] = {}
    async for holder, run in read_runs(storage, await busy_queues(storage, names)):
        by_holder.setdefault(holder, []).append(run)
    return add_runs(workers, by_holder)


async def read_records(storage: Storage) -> list[WorkerInfo]:
    """Return the workers whose record has not expired, by name and start. It costs a call for 1,000."""
    found, after = list[WorkerInfo](), None
    while True:
        page = await storage.list(WORKERS_QUEUE, "completed", after=after, limit=RECORDS_PAGE)
        for _, slot in page.items:
            if slot.outcome is not None and (parts := decode_record(slot.outcome)) is not None:
                found.append(_make_info(slot.outcome, *parts))
        if (after := page.after) is None:
            return sorted(found, key=lambda worker: (worker.name, worker.started_at, worker.pid))


async def busy_queues(storage: Storage, names: Sequence[str]) -> Mapping[str, int]:
    """Return those of the queues that have active jobs, with their number."""
    counts = await storage.counts(names)
    return {name: numbers.active for name, numbers in counts.items() if numbers.active}


async def read_runs(storage: Storage, queues: Iterable[str]) -> AsyncIterator[tuple[str, WorkerRun]]:
    """Yield the holder and the run of each active job of the queues, page by page."""
    for queue in queues:
        after: str | None = None
        while True:
            page = await storage.list(queue, "active", after=after, limit=JOBS_PAGE)
            for id, slot in page.items:
                if (job := slot.current) is None or (run := job.run) is None:
                    continue
                yield (
                    run.holder,
                    WorkerRun(
                        queue=queue,
                        id=id,
                        claimed_at=utc_datetime(run.claimed_at),
                        attempt=job.attempts,
                        handed_off=run.lease is None,
                        cancel_requested=run.cancel_requested,
                    ),
                )
            if (after := page.after) is None:
                break


def add_runs(workers: Iterable[WorkerInfo], by_holder: Mapping[str, list[WorkerRun]]) -> list[WorkerInfo]:
    """Return the workers with their runs, and an unrecorded worker for each other holder of runs."""
    for runs in by_holder.values():
        runs.sort(key=lambda run: (run.claimed_at, run.queue, run.id))
    found = [
        msgspec.structs.replace(worker, runs=tuple(by_holder.get(worker.name, ()))) for worker in workers
    ]
    others = by_holder.keys() - {worker.name for worker in found}
    found += [WorkerInfo(name=name, recorded=False, runs=tuple(by_holder[name])) for name in others]
    return sorted(found, key=lambda worker: worker.name)


def _make_info(outcome: Outcome, record: WorkerRecord, state: WorkerState) -> WorkerInfo:
    expires_at = outcome.expires_at or 0
    return WorkerInfo(
        name=record.name,
        host=record.host,
        pid=record.pid,
        version=record.version,
        python=record.python,
        queues=record.queues,
        queue_count=record.queue_count,
        processes=state.processes,
        capacity=state.capacity,
        busy=state.busy,
        running=state.running,
        ready=state.ready,
        stopping=state.stopping,
        started_at=utc_datetime(record.started_at),
        seen_at=utc_datetime(max(0, expires_at - record.ttl)),
        expires_at=utc_datetime(expires_at),
        lease=record.lease / 1000,
        settings=record.settings,
    )
