"""What a history comes to, in plain Python: every job is followed from end to end, every minute looked at.

It shares nothing with the pipeline but the tables' columns. Slow on purpose: no sums of changes, no
increments, only intervals and counting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dibs.model.events import LogEvent
from dibs.model.job import Job, Slot, Successor

MINUTE = 60_000
JOB_ENDS = {"completed", "failed", "cancelled"}
ENDS = ("completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released")
FOREVER = 2**62

Told = tuple[str, LogEvent]
Span = tuple[int, int]


@dataclass
class JobHistory:
    """One job from its enqueue on. Spans are half open; FOREVER is the end of what has not ended."""

    arrived: int | None = None
    waiting: list[Span] = field(default_factory=list)
    due: list[Span] = field(default_factory=list)
    active: list[Span] = field(default_factory=list)

    def moments(self) -> set[int]:
        spans = [*self.waiting, *self.due, *self.active]
        return {at for span in spans for at in span if at != FOREVER}


def stories(
    told: Iterable[Told], live: Iterable[tuple[str, Slot]], horizon: int
) -> dict[str, list[JobHistory]]:
    """The stories of each queue's jobs; a job is known by the first enqueue in its range."""
    ends: dict[tuple[str, str, int], list[LogEvent]] = defaultdict(list)
    for queue, event in told:
        if event.kind in ENDS:
            ends[queue, event.id, event.first].append(event)
    rest: dict[tuple[str, str, int], Job | Successor] = {}
    for queue, slot in live:
        if slot.current:
            rest[queue, slot.current.id, slot.current.first] = slot.current
            if slot.successor:
                rest[queue, slot.current.id, slot.successor.first] = slot.successor
    found: dict[str, list[JobHistory]] = defaultdict(list)
    for key in {*ends, *rest}:
        events = sorted(ends[key], key=lambda event: event.at)
        found[key[0]].append(story(events, rest.get(key), horizon))
    return found


def story(events: Sequence[LogEvent], rest: Job | Successor | None, horizon: int) -> JobHistory:
    told = JobHistory(arrived=events[0].enqueued_at if events else rest.enqueued_at if rest else None)
    assert told.arrived is not None
    since = told.arrived
    for event in events:
        until = event.at if event.claimed_at is None else event.claimed_at
        told.waiting.append((since, until))
        told.due.append((max(event.run_at, event.enqueued_at), until))
        if event.claimed_at is not None:
            told.active.append((event.claimed_at, event.at))
        since = event.at
    if rest is not None:
        claimed = rest.run.claimed_at if isinstance(rest, Job) and rest.run else FOREVER
        told.waiting.append((since, claimed))
        due = max(rest.run_at, rest.enqueued_at)
        if due <= horizon:
            told.due.append((due, claimed))
        if claimed != FOREVER:
            told.active.append((claimed, FOREVER))
    told.due = [(begun, ended) for begun, ended in told.due if begun < ended]
    return told


def metrics(
    told: Sequence[Told], live: Sequence[tuple[str, Slot]], horizon: int
) -> dict[tuple[str, int], dict[str, Any]]:
    """One row for each queue and minute in which something happened, waited or was active."""
    rows = {}
    for queue, jobs in stories(told, live, horizon).items():
        events = [event for name, event in told if name == queue]
        first = min(moment for job in jobs for moment in job.moments())
        for minute in range(first - first % MINUTE, horizon + 1, MINUTE):
            if is_logged(jobs, minute):
                rows[queue, minute] = row(jobs, events, minute)
    return rows


def is_logged(jobs: list[JobHistory], minute: int) -> bool:
    inside = range(minute, minute + MINUTE)
    there = any(
        begun < minute < ended for job in jobs for begun, ended in (*job.waiting, *job.due, *job.active)
    )
    return there or any(moment in inside for job in jobs for moment in job.moments())


def row(jobs: list[JobHistory], events: list[LogEvent], minute: int) -> dict[str, Any]:
    inside = range(minute, minute + MINUTE)
    ended = [event for event in events if event.kind in ENDS and event.at in inside]
    runs = [event for event in ended if event.claimed_at is not None]
    waits, took = sorted(map(wait, runs)), sorted(map(run, runs))
    counts = {kind: sum(event.kind == kind for event in ended) for kind in ENDS}
    accepted = sum(event.kind in ("queued", "updated", "blocked") and event.at in inside for event in events)
    spans = {name: [s for job in jobs for s in getattr(job, name)] for name in ("waiting", "due", "active")}
    last = minute + MINUTE - 1
    active = average(spans["active"], minute)
    peak = max(level(spans["active"], at) for at in {minute, *moments_in(spans["active"], inside)})
    return {
        "arrivals": sum(job.arrived in inside for job in jobs),
        "enqueues": accepted or None,
        "claims": sum(begun in inside for begun, _ in spans["active"]),
        **counts,
        "attempts": len(runs),
        "retry_rate": counts["retried"] / len(runs) if runs else None,
        "stall_rate": counts["stalled"] / len(runs) if runs else None,
        "timeout_rate": counts["timed_out"] / len(runs) if runs else None,
        "wait_ms": sum(waits),
        "run_ms": sum(took),
        **{f"wait_p{p}_ms": nearest_rank(waits, p) for p in (50, 95, 99)},
        **{f"run_p{p}_ms": nearest_rank(took, p) for p in (50, 95, 99)},
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
    """The least value that at least so many in a hundred do not exceed."""
    return next((v for i, v in enumerate(ordered, 1) if 100 * i >= percent * len(ordered)), None)


def level(spans: list[Span], at: int) -> int:
    return sum(begun <= at < ended for begun, ended in spans)


def average(spans: list[Span], minute: int) -> float:
    parts = (min(ended, minute + MINUTE) - max(begun, minute) for begun, ended in spans)
    return sum(part for part in parts if part > 0) / MINUTE


def moments_in(spans: list[Span], inside: range) -> set[int]:
    return {at for span in spans for at in span if at in inside}


def ids(told: Sequence[Told]) -> dict[tuple[str, str], dict[str, Any]]:
    """One row for each id that ended at least once."""
    ended: dict[tuple[str, str], list[LogEvent]] = defaultdict(list)
    for queue, event in told:
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


def runs(told: Sequence[Told]) -> set[tuple[Any, ...]]:
    """One tuple for each attempt that ended."""
    return {
        (queue, event.id, event.attempt, event.fence, event.kind, wait(event), run(event), event.holder)
        for queue, event in told
        if event.kind in ENDS and event.claimed_at is not None
    }
