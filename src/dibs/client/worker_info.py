"""`WorkerInfo`, which `app.workers` returns, read from the records of workers and from the active jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from dibs.client.options.arguments import utc_datetime
from dibs.model.job import ActiveRun, Job, Outcome
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
    """Name of the worker, as in `Status.holder`. Workers have the same name only if they were given it."""
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
    leases: tuple[str, ...] = ()
    """Ids of the leases under which it held jobs: one, and for a time more after a process has died."""
    settings: Mapping[str, Mapping[str, Any]] = {}
    """Settings that its tasks declare for their queues, by queue and name, as the storage keeps them."""
    runs: tuple[WorkerRun, ...] = ()
    """Its active jobs by the time of their claim, with `app.workers(runs=True)`. A job of a lease that no
    record names, or of none after a hand-off, is listed with the first worker of its holder's name."""


#: The name of a holder of runs, and the id of its lease; None for the runs that it has handed off.
Holder = tuple[str, str | None]


async def read_workers(storage: Storage, *, runs: bool = False) -> list[WorkerInfo]:
    """Return the workers that live, by name and start. With `runs`, also read all active jobs.

    Raise StorageError.
    """
    workers = await read_records(storage)
    if not runs:
        return workers
    names = [info.name for info in without_reserved(await storage.queues())]
    by_holder: dict[Holder, list[WorkerRun]] = {}
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


async def read_runs(storage: Storage, queues: Iterable[str]) -> AsyncIterator[tuple[Holder, WorkerRun]]:
    """Yield the holder and the run of each active job of the queues, page by page."""
    for queue in queues:
        after: str | None = None
        while True:
            page = await storage.list(queue, "active", after=after, limit=JOBS_PAGE)
            for _, slot in page.items:
                if (job := slot.current) is None or (run := job.run) is None:
                    continue
                yield (run.holder, run.lease), make_worker_run(queue, job, run)
            if (after := page.after) is None:
                break


def make_worker_run(queue: str, job: Job, run: ActiveRun) -> WorkerRun:
    return WorkerRun(
        queue=queue,
        id=job.id,
        claimed_at=utc_datetime(run.claimed_at),
        attempt=job.attempts,
        handed_off=run.lease is None,
        cancel_requested=run.cancel_requested,
    )


def add_runs(
    workers: Sequence[WorkerInfo], by_holder: Mapping[Holder, Sequence[WorkerRun]]
) -> list[WorkerInfo]:
    """Return the workers with their runs, and an unrecorded worker for each other name of a holder.

    Each run is listed once, also if several workers have its holder's name.
    """
    owners: dict[Holder, int] = {}
    for index, worker in reversed([*enumerate(workers)]):
        owners |= dict.fromkeys(((worker.name, lease) for lease in (None, *worker.leases)), index)
    found = [*workers]
    runs: defaultdict[int, list[WorkerRun]] = defaultdict(list)
    for (name, lease), held in by_holder.items():
        first = owners.get((name, None))
        if first is None:
            first = owners[name, None] = len(found)
            found.append(WorkerInfo(name=name, recorded=False))
        runs[owners.get((name, lease), first)] += held
    for index, held in runs.items():
        held.sort(key=lambda run: (run.claimed_at, run.queue, run.id))
        found[index] = msgspec.structs.replace(found[index], runs=tuple(held))
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
        leases=state.leases,
        settings=record.settings,
    )
