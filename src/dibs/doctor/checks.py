"""The checks of `dibs doctor` on an open storage: its clock, leases, queues and workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import msgspec

from dibs.client.stored_schedules import storage_now
from dibs.client.worker_info import WorkerInfo
from dibs.doctor.facts import Facts
from dibs.doctor.retrying import group_retrying, is_failing
from dibs.model.findings import Finding, Rule
from dibs.model.job import FAIL_SUFFIX, ActiveRun
from dibs.model.worker_record import WORKERS_QUEUE
from dibs.storage.protocol import Storage

#: Difference of two clocks that is a finding, in ms, beside the time of the request.
LARGEST_DIFFERENCE: Final = 1_000

DIFFERS: Final = Rule(
    "clock-differs",
    "warning",
    "Delays and leases are right, since the storage measures them. Absolute times of this machine, such as "
    "run_at, start_by and the ages that commands print, are off by the difference.",
    "Synchronize the clocks of this machine and of the server by NTP. If both are right, the storage has a "
    'lead, as the guide "Correct the clock" explains.',
)
LEAD: Final = Rule(
    "clock-lead",
    "warning",
    "The clock of this machine was ahead once, and the storage goes on from that time: absolute times and "
    "cron ticks come early by the difference.",
    'The guide "Correct the clock" says how to end a lead.',
)


async def check_clock(storage: Storage, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Return a finding if the storage's time differs from `clock`, which returns seconds since the epoch."""
    before = clock() * 1000
    now = await storage_now(storage, WORKERS_QUEUE)
    after = clock() * 1000
    difference = max(now - after, before - now)
    if difference <= LARGEST_DIFFERENCE:
        return iter(())
    rule = DIFFERS if storage.capabilities.server_clock else LEAD
    side = "ahead of" if now > after else "behind"
    return iter([rule.finding(f"the time of the storage is {difference / 1000:,.1f} s {side} this machine")])


#: Active jobs that are looked at in one queue, and leases in all.
MOST_JOBS: Final = 20
MOST_LEASES: Final = 200
#: Seconds until a second look. Workers look for expired leases every 0.8 s while jobs are active.
SECOND_LOOK: Final = 2.0

EXPIRED: Final = Rule(
    "leases-expired",
    "error",
    "The holders of these jobs are gone, and no worker returns the jobs to their queue: the ids stand still.",
    "Start a worker that serves the queue; it returns the jobs within a minute.",
)

#: The runs under expired leases, by queue and id.
Suspects = dict[str, dict[str, ActiveRun]]


async def check_leases(storage: Storage, facts: Facts) -> AsyncIterator[Finding]:
    """Yield a finding for each queue whose jobs are under expired leases and stay there."""
    suspects = await _find_suspects(storage, facts)
    if not suspects:
        return
    await asyncio.sleep(SECOND_LOOK)
    for queue, runs in suspects.items():
        slots = await storage.get(queue, list(runs))
        current = [slot.current.run for slot in slots if slot.current is not None]
        fences = {run.fence for run in current if run is not None}
        holders = [run.holder for run in runs.values() if run.fence in fences]
        if not holders:
            continue
        names = ", ".join(sorted(set(holders))[:3])
        yield EXPIRED.finding(
            f"{len(holders)} of up to {MOST_JOBS} examined jobs are under expired leases, of {names}", queue
        )


async def _find_suspects(storage: Storage, facts: Facts) -> Suspects:
    """Return active jobs whose lease has expired."""
    alive: dict[tuple[str, str], bool] = {}
    suspects: Suspects = {}
    for queue, _, counts in facts.counted():
        if counts.active <= counts.handed_off:
            continue
        page = await storage.list(queue, "active", limit=MOST_JOBS)
        for id, slot in page.items:
            run = slot.current.run if slot.current is not None else None
            if run is None or run.lease is None or len(alive) >= MOST_LEASES:
                continue
            if (queue, run.lease) not in alive:
                # A renewal never shortens a lease, and cannot revive one.
                alive[queue, run.lease] = (await storage.renew([queue], run.lease, 1))[queue].alive
            if not alive[queue, run.lease]:
                suspects.setdefault(queue, {})[id] = run
    return suspects


#: Outcomes of one kind that a queue may keep for ever before it is a finding.
MANY_OUTCOMES: Final = 10_000

NOT_SERVED: Final = Rule(
    "queue-not-served",
    "error",
    "These jobs wait until a worker with a handler for the queue starts.",
    "Start a worker that serves the queue (`dibs worker MODULE:APP`), or correct the name of the queue in "
    "the program that enqueues; `dibs workers` lists the queues that are served.",
)
RUNS_FAIL: Final = Rule(
    "runs-fail",
    "error",
    "Runs of the queue fail, and their jobs wait to run again. They count as failed after the last retry.",
    "`dibs failures QUEUE` shows the errors, also of jobs that are retried. Mend the cause; `dibs pause "
    "QUEUE` keeps the jobs from using up their retries.",
)
PAUSED: Final = Rule(
    "queue-paused",
    "warning",
    "No worker claims these jobs, also not those that are due.",
    "`dibs resume QUEUE`, or `dibs configure QUEUE --max-active NUMBER`, once the reason is gone.",
)
KEY_PAUSED: Final = Rule(
    "key-paused",
    "warning",
    "No worker claims the due jobs of these keys; other jobs of the queue go on.",
    "`dibs resume QUEUE --key KEY`, once the reason is gone.",
)
HANDLER_MISSING: Final = Rule(
    "failure-handler-missing",
    "warning",
    "Jobs of the queue that fail get a fail job, and no worker runs it.",
    "Start workers with the application that declares @task.on_failure, or pause the queue QUEUE!fail.",
)
HANDLER_FAILED: Final = Rule(
    "failure-handler-failed",
    "warning",
    "The failure handler itself has failed for these jobs. Their outcomes are kept for ever.",
    "`dibs failures QUEUE!fail` shows the errors; mend the handler, then `dibs retry QUEUE!fail --all`.",
)
FULL: Final = Rule(
    "queue-full",
    "warning",
    "An enqueue of a new job raises QueueFull, or drops the job.",
    "Start more workers of the queue, enqueue less, or raise it: `dibs configure QUEUE --max-waiting N`.",
)
KEPT_FOR_EVER: Final = Rule(
    "outcomes-kept",
    "warning",
    "The storage grows with each job that ends.",
    "Set a retention: `dibs configure QUEUE --retention completed=1h`, or retention= of the task.",
)


def check_queues(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about single queues."""
    yield from _unserved(facts)
    yield from _paused(facts)
    yield from _full(facts)
    yield from _failure_handlers(facts)
    yield from _kept_outcomes(facts)


def _unserved(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        due = counts.waiting - counts.scheduled
        if facts.is_unserved(name, settings, counts):
            count = len(facts.workers)
            live = f"none of {count} live workers" if count > 1 else "not the only live worker"
            yield NOT_SERVED.finding(
                f"{due:,} due jobs wait, and {live if count else 'no worker'} serves them", name
            )


#: The check reads the errors of at most this many queues.
MOST_FAILING: Final = 20


async def check_runs(storage: Storage, facts: Facts) -> AsyncIterator[Finding]:
    """Yield a finding for each queue whose retrying jobs are a large part of its jobs.

    It names the type of the error. The message is left out, because it may quote what the dashboard hides.
    """
    failing = [(name, counts) for name, _, counts in facts.counted() if is_failing(counts)]
    for index, (name, counts) in enumerate(failing):
        groups = await group_retrying(storage, name, counts) if index < MOST_FAILING else []
        cause = f", most of them by {groups[0].type}" if groups and groups[0].type else ""
        yield RUNS_FAIL.finding(f"{counts.retrying:,} jobs wait after a run that failed{cause}", name)


def _paused(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        reason = "paused" if settings.paused else "closed by max_active 0" if settings.max_active == 0 else ""
        if reason and counts.waiting:
            yield PAUSED.finding(f"the queue is {reason}, and {counts.waiting:,} jobs wait", name)


#: Waiting jobs that are looked at in one queue with a paused key, and the queues that are looked at.
MOST_WAITING: Final = 100
MOST_PAUSING: Final = 20


async def check_keys(storage: Storage, facts: Facts) -> AsyncIterator[Finding]:
    """Yield a finding for each queue in which the first waiting jobs are due and their keys are paused."""
    pausing = [
        (name, settings, counts)
        for name, settings, counts in facts.counted()
        if 0 in settings.shares.values() and counts.waiting > counts.scheduled
    ]
    for name, settings, counts in pausing[:MOST_PAUSING]:
        now = await storage_now(storage, name)
        page = await storage.list(name, "waiting", limit=MOST_WAITING)
        jobs = [slot.current for _, slot in page.items if slot.current is not None]
        held = [
            job.data.key for job in jobs if job.run_at <= now and settings.shares.get(job.data.key or "") == 0
        ]
        if held:
            keys = sorted({key for key in held if key is not None})
            named = ", ".join(keys[:3]) + (f" and {len(keys) - 3} more keys" if len(keys) > 3 else "")
            some = f"of {len(jobs):,} examined jobs, " if counts.waiting > len(jobs) else ""
            yield KEY_PAUSED.finding(f"{some}{len(held):,} are due and held by the paused keys {named}", name)


def _full(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        if settings.max_waiting is not None and counts.waiting >= settings.max_waiting:
            answer = "refuses" if settings.when_full == "refuse" else "drops"
            found = f"{counts.waiting:,} jobs wait, max_waiting is {settings.max_waiting:,}"
            yield FULL.finding(f"{found}, and the queue {answer} new jobs", name)


def _failure_handlers(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        if name.endswith(FAIL_SUFFIX) and counts.failed:
            yield HANDLER_FAILED.finding(f"{counts.failed:,} fail jobs have failed", name)
        is_handled = name + FAIL_SUFFIX in facts.served or not facts.knows_all_served
        if settings.fail_handler and name in facts.served and not is_handled:
            yield HANDLER_MISSING.finding("workers serve the queue and not its fail queue", name)


def _kept_outcomes(facts: Facts) -> Iterator[Finding]:
    for name, settings, counts in facts.counted():
        for kind in ("completed", "failed", "cancelled"):
            number: int = getattr(counts, kind)
            if getattr(settings.retention, kind) is None and number >= MANY_OUTCOMES:
                yield KEPT_FOR_EVER.finding(f"{number:,} {kind} outcomes are kept for ever", name)


#: Seconds that a worker may take until it can claim.
START_SECONDS: Final = 60

NOT_READY: Final = Rule(
    "worker-not-ready",
    "warning",
    "The worker lives and claims no jobs: it has no lease, or its processes do not start.",
    "Read its log.",
)
VERSIONS: Final = Rule(
    "worker-versions",
    "note",
    "A rolling upgrade is under way, or some workers were forgotten.",
    "Restart the workers with the older version.",
)
SETTINGS: Final = Rule(
    "worker-settings",
    "warning",
    "Each worker writes the settings that its tasks declare when it starts, so the last start decides.",
    "Deploy the same code to all workers of the queue.",
)
RULES: Final = (
    NOT_SERVED, RUNS_FAIL, PAUSED, KEY_PAUSED, FULL, HANDLER_MISSING, HANDLER_FAILED, KEPT_FOR_EVER, EXPIRED,
    NOT_READY, VERSIONS, SETTINGS,
    DIFFERS, LEAD,
)  # fmt: skip


def check_workers(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the workers that live."""
    for worker in facts.workers:
        if not worker.ready and not worker.stopping and _age(worker) > START_SECONDS:
            yield NOT_READY.finding(f"it has been up for {_age(worker):.0f} s and cannot claim", worker.name)
    versions = sorted({worker.version for worker in facts.workers})
    if len(versions) > 1:
        yield VERSIONS.finding(f"live workers have the versions {', '.join(versions)}")
    yield from _settings(facts)


def _age(worker: WorkerInfo) -> float:
    """Return the seconds from the start of a worker to its last record, both by the clock of the storage."""
    if worker.seen_at is None or worker.started_at is None:
        return 0.0
    return (worker.seen_at - worker.started_at).total_seconds()


def _settings(facts: Facts) -> Iterator[Finding]:
    declared: dict[tuple[str, str], dict[bytes, str]] = {}
    for worker in facts.workers:
        for queue in worker.queues:
            for name, value in worker.settings.get(queue, {}).items():
                declared.setdefault((queue, name), {})[_key(value)] = worker.name
    for (queue, name), values in declared.items():
        if len(values) > 1:
            found = "; ".join(f"{worker}: {value.decode()}" for value, worker in sorted(values.items()))
            yield SETTINGS.finding(f"workers declare different values of {name}: {found}", queue)


def _key(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
