"""The expected tables of a history, computed in plain Python: each job is followed from enqueue to end.

This module shares only column names with the pipeline. It is slow by design: it counts intervals in
every minute, without sums of changes and without increments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from dibs.model.events import LogEvent
from dibs.model.job import Job, Slot, Successor

MINUTE = 60_000
JOB_ENDS = {"completed", "failed", "cancelled"}
ENDS = ("completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released")
FOREVER = 2**62

QueueEvent = tuple[str, LogEvent]
Span = tuple[int, int]


@define
class JobHistory:
    """The history of one job. Spans are half open; FOREVER is the end of a span that has not ended."""

    arrived: int | None = None
    waiting: list[Span] = field(factory=list)
    due: list[Span] = field(factory=list)
    active: list[Span] = field(factory=list)

    def moments(self) -> set[int]:
        spans = [*self.waiting, *self.due, *self.active]
        return {at for span in spans for at in span if at != FOREVER}


def job_histories(
    history: Iterable[QueueEvent], live: Iterable[tuple[str, Slot]], horizon: int
) -> dict[str, list[JobHistory]]:
    """Return the histories of the jobs by queue. A job is identified by the first revision of its range."""
    ends: dict[tuple[str, str, int], list[LogEvent]] = defaultdict(list)
    for queue, event in history:
        if event.kind in ENDS:
            ends[queue, event.id, event.first].append(event)
    live_jobs: dict[tuple[str, str, int], Job | Successor] = {}
    for queue, slot in live:
        if slot.current:
            live_jobs[queue, slot.current.id, slot.current.first] = slot.current
            if slot.successor:
                live_jobs[queue, slot.current.id, slot.successor.first] = slot.successor
    found: dict[str, list[JobHistory]] = defaultdict(list)
    for key in {*ends, *live_jobs}:
        events = sorted(ends[key], key=lambda event: event.at)
        found[key[0]].append(job_history(events, live_jobs.get(key), horizon))
    return found


def job_history(events: Sequence[LogEvent], live: Job | Successor | None, horizon: int) -> JobHistory:
    history = JobHistory(arrived=events[0].enqueued_at if events else live.enqueued_at if live else None)
    assert history.arrived is not None
    since = history.arrived
    for event in events:
        until = event.at if event.claimed_at is None else event.claimed_at
        history.waiting.append((since, until))
        history.due.append((max(event.run_at, event.enqueued_at), until))
        if event.claimed_at is not None:
            history.active.append((event.claimed_at, event.at))
        since = event.at
    if live is not None:
        claimed = live.run.claimed_at if isinstance(live, Job) and live.run else FOREVER
        history.waiting.append((since, claimed))
        due = max(live.run_at, live.enqueued_at)
        if due <= horizon:
            history.due.append((due, claimed))
        if claimed != FOREVER:
            history.active.append((claimed, FOREVER))
    history.due = [(start, end) for start, end in history.due if start < end]
    return history


def metrics(
    history: Sequence[QueueEvent], live: Sequence[tuple[str, Slot]], horizon: int
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return one row for each queue and minute in which a job changed, waited or was active."""
    rows = {}
    for queue, jobs in job_histories(history, live, horizon).items():
        events = [event for name, event in history if name == queue]
        first = min(moment for job in jobs for moment in job.moments())
        for minute in range(first - first % MINUTE, horizon + 1, MINUTE):
            if has_row(jobs, minute):
                rows[queue, minute] = row(jobs, events, minute)
    return rows


def has_row(jobs: list[JobHistory], minute: int) -> bool:
    minute_range = range(minute, minute + MINUTE)
    there = any(start < minute < end for job in jobs for start, end in (*job.waiting, *job.due, *job.active))
    return there or any(moment in minute_range for job in jobs for moment in job.moments())


def row(jobs: list[JobHistory], events: list[LogEvent], minute: int) -> dict[str, Any]:
    minute_range = range(minute, minute + MINUTE)
    ended = [event for event in events if event.kind in ENDS and event.at in minute_range]
    runs = [event for event in ended if event.claimed_at is not None]
    waits, run_times = sorted(map(wait, runs)), sorted(map(run, runs))
    counts = {kind: sum(event.kind == kind for event in ended) for kind in ENDS}
    accepted = sum(
        event.kind in ("queued", "updated", "blocked") and event.at in minute_range for event in events
    )
    spans = {name: [s for job in jobs for s in getattr(job, name)] for name in ("waiting", "due", "active")}
    last = minute + MINUTE - 1
    active = average(spans["active"], minute)
    peak = max(level(spans["active"], at) for at in {minute, *moments_in(spans["active"], minute_range)})
    return {
        "arrivals": sum(job.arrived in minute_range for job in jobs),
        "enqueues": accepted or None,
        "claims": sum(start in minute_range for start, _ in spans["active"]),
        **counts,
        "attempts": len(runs),
        "retry_rate": counts["retried"] / len(runs) if runs else None,
        "stall_rate": counts["stalled"] / len(runs) if runs else None,
        "timeout_rate": counts["timed_out"] / len(runs) if runs else None,
        "wait_ms": sum(waits),
        "run_ms": sum(run_times),
        **{f"wait_p{p}_ms": nearest_rank(waits, p) for p in (50, 95, 99)},
        **{f"run_p{p}_ms": nearest_rank(run_times, p) for p in (50, 95, 99)},
        "holders": len({event.holder for event in runs}),
        "backlog": level(spans["waiting"], last),
        "backlog_due": level(spans["due"], last),
        "waiting": average(spans["waiting"], minute),
        "due": average(spans["due"], minute),
        "active": active,
        "active_peak": peak,
        "utilisation": active / peak if peak else None,
    }


def wait(event: LogEvent) -> int:
    assert event.claimed_at is not None
    return event.claimed_at - max(event.run_at, event.enqueued_at)


def run(event: LogEvent) -> int:
    assert event.claimed_at is not None
    return event.at - event.claimed_at


def nearest_rank(ordered: list[int], percent: int) -> int | None:
    """Return the smallest value that at least `percent` of 100 values do not exceed."""
    return next((v for i, v in enumerate(ordered, 1) if 100 * i >= percent * len(ordered)), None)


def level(spans: list[Span], at: int) -> int:
    return sum(start <= at < end for start, end in spans)


def average(spans: list[Span], minute: int) -> float:
    parts = (min(end, minute + MINUTE) - max(start, minute) for start, end in spans)
    return sum(part for part in parts if part > 0) / MINUTE


def moments_in(spans: list[Span], minute_range: range) -> set[int]:
    return {at for span in spans for at in span if at in minute_range}


def ids(history: Sequence[QueueEvent]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return one row for each id that ended at least once."""
    ended: dict[tuple[str, str], list[LogEvent]] = defaultdict(list)
    for queue, event in history:
        if event.kind in ENDS:
            ended[queue, event.id].append(event)
    rows = {}
    for key, events in ended.items():
        runs = [event for event in events if event.claimed_at is not None]
        rows[key] = {
            "attempts": len(runs),
            **{kind: sum(event.kind == kind for event in events) for kind in ENDS},
            "merged": sum(event.enqueues - 1 for event in events if event.kind in JOB_ENDS),
            "wait_ms": sum(map(wait, runs)),
            "longest_wait_ms": max(map(wait, runs), default=0),
            "run_ms": sum(map(run, runs)),
            "longest_run_ms": max(map(run, runs), default=0),
            "first_end_at": min(event.at for event in events),
            "last_end_at": max(event.at for event in events),
        }
    return rows


def runs(history: Sequence[QueueEvent]) -> set[tuple[Any, ...]]:
    """Return one tuple for each attempt that ended."""
    return {
        (queue, event.id, event.attempt, event.fence, event.kind, wait(event), run(event), event.holder)
        for queue, event in history
        if event.kind in ENDS and event.claimed_at is not None
    }
