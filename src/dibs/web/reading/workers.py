"""The workers that live, by their records, and the jobs that they hold, by a bounded scan of active jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attrs import frozen

from dibs.client.worker_info import Holder, WorkerInfo, WorkerRun, add_runs, make_worker_run
from dibs.storage.protocol import Storage
from dibs.web.reading.source import Budget, Source

#: Bounds of the scan of one page: active jobs and seconds.
MAX_SCANNED: Final = 2_000
MAX_SECONDS: Final = 1.5
#: Active jobs that one call reads. Each comes with its payload, up to 1 MiB.
PAGE_SIZE: Final = 100
#: Workers that the page lists; jobs of one worker, those with the oldest claim first; and its queues.
MAX_WORKERS: Final = 200
MAX_LISTED: Final = 10
MAX_QUEUES: Final = 8
#: Seconds for which pages share the records.
RECORDS_AGE: Final = 3.0
#: A worker refreshes its record every two leases, and at least every 30 seconds. One whose record is older
#: than this number of refreshes is marked.
MISSED_REFRESHES: Final = 1.5


@frozen
class HeldJob:
    """A job that a worker holds."""

    queue: str
    id: str
    claimed_at: int
    attempt: int
    handed_off: bool
    cancel_requested: bool


@frozen
class WorkerRow:
    """A worker, and the jobs that it holds. Times are ms since the epoch."""

    name: str
    #: False for a holder of jobs without a record; the fields from its record are then empty.
    recorded: bool
    #: "idle", "busy", "starting", "stopping", or "silent" if it has missed a refresh of its record.
    state: str
    #: Host and process id, if the name is another one.
    address: str
    version: str
    python: str
    processes: int
    #: Part of its capacity that its runs take, in %; None without a capacity.
    load: int | None
    started_at: int | None
    seen_at: int | None
    queues: tuple[str, ...]
    queue_count: int
    active: int
    handed_off: int
    jobs: tuple[HeldJob, ...]


@frozen
class WorkersPage:
    """The workers by name."""

    rows: tuple[WorkerRow, ...]
    #: Number of all workers, and of those with a record.
    count: int
    recorded: int
    #: Versions of dibs that the workers have.
    versions: tuple[str, ...]
    #: Number of active jobs that were read, and the number that the storage counts.
    scanned: int
    total: int


async def read_workers(source: Source, _params: Mapping[str, str]) -> WorkersPage:
    """Return the workers that live, and the holders of active jobs."""
    storage = await source.storage()
    recorded = await source.workers.answer(RECORDS_AGE)
    counts = await source.census.counts(seconds=MAX_SECONDS)
    busy = {name: each.active for name, each in counts.items() if each.active}
    budget = Budget(MAX_SCANNED, MAX_SECONDS)
    holders: dict[Holder, list[WorkerRun]] = {}
    for queue in sorted(busy):
        await _scan(storage, queue, budget, holders)
    found, now = add_runs(recorded, holders), time.time()
    return WorkersPage(
        rows=tuple(_row(worker, now) for worker in found[:MAX_WORKERS]),
        count=len(found),
        recorded=sum(worker.recorded for worker in found),
        versions=tuple(sorted({worker.version for worker in found if worker.version})),
        scanned=budget.read,
        total=sum(busy.values()),
    )


async def _scan(storage: Storage, queue: str, budget: Budget, holders: dict[Holder, list[WorkerRun]]) -> None:
    after: str | None = None
    while not budget.is_spent:
        page = await budget.list(storage, queue, "active", after=after, limit=PAGE_SIZE)
        for _, slot in page.items:
            if (job := slot.current) is None or (run := job.run) is None:
                continue
            holders.setdefault((run.holder, run.lease), []).append(make_worker_run(queue, job, run))
        if (after := page.after) is None:
            return


def _row(worker: WorkerInfo, now: float) -> WorkerRow:
    address = f"{worker.host}:{worker.pid}" if worker.recorded else ""
    active = sum(not run.handed_off for run in worker.runs)
    queues = worker.queues if worker.recorded else tuple({run.queue for run in worker.runs})
    return WorkerRow(
        name=worker.name,
        recorded=worker.recorded,
        state=_state(worker, active, now),
        address="" if worker.name.startswith(f"{address}:") else address,
        version=worker.version,
        python=worker.python,
        processes=len(worker.processes) or 1,
        load=100 * worker.busy // worker.capacity if worker.capacity else None,
        started_at=_ms(worker.started_at),
        seen_at=_ms(worker.seen_at),
        queues=tuple(sorted(queues)[:MAX_QUEUES]),
        queue_count=max(worker.queue_count, len(queues)),
        active=active,
        handed_off=len(worker.runs) - active,
        jobs=tuple(_held(run) for run in worker.runs[:MAX_LISTED]),
    )


def _state(worker: WorkerInfo, active: int, now: float) -> str:
    if worker.stopping:
        return "stopping"
    refresh = min(30.0, 2 * worker.lease)
    if worker.seen_at is not None and now - worker.seen_at.timestamp() > refresh * MISSED_REFRESHES:
        return "silent"
    if worker.recorded and not worker.ready:
        return "starting"
    return "busy" if active or worker.running else "idle"


def _held(run: WorkerRun) -> HeldJob:
    claimed_at = _ms(run.claimed_at) or 0
    return HeldJob(run.queue, run.id, claimed_at, run.attempt, run.handed_off, run.cancel_requested)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
