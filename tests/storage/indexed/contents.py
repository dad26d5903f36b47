"""The content of an index as plain values to compare: stored values, and values derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dibs.model import rates
from dibs.model.job import Job
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex


def contents(index: Index) -> dict[str, Any]:
    """Return all that a caller can see, independent of the order inside the heaps."""
    return {
        name: {"kept": stored(queue), "derived": derived(queue)}
        for name in sorted(index.queues)
        if (queue := index.queue(name)).used
    }


def stored(queue: QueueIndex) -> dict[str, Any]:
    """Return the stored values, which a commit has to restore."""
    return {
        "slots": dict(queue.slots),
        "leases": dict(queue.leases),
        "keys": dict(queue.keys),
        "clocks": dict(queue.clocks.values),
        "settings": queue.settings,
        "turns": dict(queue.turns),
        "log": (list(queue.log), queue.log.size, queue.log.trimmed, queue.log.end),
    }


def derived(queue: QueueIndex) -> dict[str, Any]:
    """Return the values that the index derives from slots, leases and keys."""
    return {
        "line": line(queue),
        "scheduled": {entry[2] for entry in queue.scheduled if queue._find_scheduled(entry)},
        "next due": queue.next_due(),
        "lines": {key: (line.waiting, line.runs) for key, line in queue.key_lines.by_key.items()},
        "counts": (queue.waiting, queue.active, queue.handed_off, queue.blocked, dict(queue.outcomes.counts)),
        "count of scheduled": queue.count_scheduled(),
        "held": {lease: set(ids) for lease, ids in queue.held.items()},
        "asked": set(queue.cancel_requested),
        "expired": dict(queue.expired),
        "ids": list(queue.listing.ids_after(None)),
        "leases that end": leases_that_end(queue),
        "keys that end": {(at, key) for at, key in queue.key_expiries if ends(queue, key) == at},
    }


def line(queue: QueueIndex) -> list[str]:
    """Return the ids in the order in which claims would take them: of a key, the first job alone."""
    return [e[4] for e in sorted(set(queue.due)) if queue._find_claimable(e)]


def leases_that_end(queue: QueueIndex) -> set[str]:
    """Return the leases that a reap would find after their end."""
    return {id for at, id in queue.lease_expiries if id in queue.leases and at <= queue.leases[id].expires_at}


def ends(queue: QueueIndex, key: str) -> int | None:
    """Return the expiry of a request key."""
    return queue.keys[key].expires_at if key in queue.keys else None


def derived_by_scan(queue: QueueIndex) -> dict[str, Any]:
    """Return the expected result of `derived`, computed by a scan of all slots."""
    now = queue.now
    jobs = {id: slot.current for id, slot in queue.slots.items() if slot.current is not None}
    waiting = {id: job for id, job in jobs.items() if job.run is None}
    runs = {id: job.run for id, job in jobs.items() if job.run is not None}
    due = [job for job in waiting.values() if job.run_at <= now]
    later = [job for job in waiting.values() if job.run_at > now]
    outcomes = {id: slot.outcome for id, slot in queue.slots.items() if slot.outcome is not None}
    gone = {id for id, o in outcomes.items() if o.expires_at is not None and o.expires_at <= now}
    alive = [outcome.kind for id, outcome in outcomes.items() if id not in gone]
    lines = count_by_key(queue, jobs.values())
    in_line = first_of_each_key(queue, [job for job in due if is_open(queue, lines, line_of(queue, job))])
    held: dict[str, set[str]] = {}
    for id, run in runs.items():
        if run.lease is not None:
            held.setdefault(run.lease, set()).add(id)
    return {
        "line": [job.id for job in in_line],
        "scheduled": {job.id for job in later},
        "next due": next_due(queue, lines, due, in_line, [job.run_at for job in later]),
        "lines": {key: counts for key, counts in lines.items() if any(counts)},
        "counts": (
            len(waiting),
            len(runs),
            sum(run.lease is None for run in runs.values()),
            sum(slot.successor is not None for slot in queue.slots.values()),
            {kind: alive.count(kind) for kind in ("completed", "failed", "cancelled")},
        ),
        "count of scheduled": len(later),
        "held": held,
        "asked": {id for id, run in runs.items() if run.lease is not None and run.cancel_requested},
        "expired": {id: outcomes[id] for id in gone},
        "ids": sorted(queue.slots),
        "leases that end": set(queue.leases),
        "keys that end": {(key.expires_at, name) for name, key in queue.keys.items()},
    }


#: The numbers of the waiting jobs and of the runs under leases of each key.
Lines = Mapping[str, tuple[int, int]]


def line_of(queue: QueueIndex, job: Job) -> str | None:
    """Return the key of a job. In a fair queue, the jobs without a key have a line, too."""
    return "" if job.data.key is None and queue.settings.fair else job.data.key


def count_by_key(queue: QueueIndex, jobs: Iterable[Job]) -> Lines:
    lines: dict[str, tuple[int, int]] = {}
    for job in jobs:
        if (key := line_of(queue, job)) is not None:
            waiting, runs = lines.get(key, (0, 0))
            is_held = job.run is not None and job.run.lease is not None
            lines[key] = (waiting + (job.run is None), runs + is_held)
    return lines


def is_full(queue: QueueIndex, lines: Lines, key: str) -> bool:
    per_key = queue.settings.per_key
    is_paused = queue.settings.shares.get(key) == 0
    return is_paused or (key != "" and per_key is not None and lines[key][1] >= per_key)


def opens_at(queue: QueueIndex, key: str) -> int:
    """Return the time at which the clock of a key allows a start."""
    rate = queue.settings.key_rate
    return 0 if rate is None or key == "" else rates.next_start(queue.clocks.values.get(key, 0), rate)


def is_open(queue: QueueIndex, lines: Lines, key: str | None) -> bool:
    return key is None or (not is_full(queue, lines, key) and opens_at(queue, key) <= queue.now)


def first_of_each_key(queue: QueueIndex, jobs: list[Job]) -> list[Job]:
    """Return the jobs in the order of claims, with only the first one of each key."""
    places = {key: place for key, (place, _) in queue.turns.items()}
    keys = {job.id: line_of(queue, job) for job in jobs}
    ordered = sorted(
        jobs, key=lambda job: (-job.data.priority, places.get(keys[job.id] or "", 0), job.run_at, job.seq)
    )
    before = [keys[job.id] for job in ordered]
    return [job for i, job in enumerate(ordered) if before[i] is None or before[i] not in before[:i]]


def next_due(
    queue: QueueIndex, lines: Lines, due: list[Job], in_line: list[Job], run_ats: list[int]
) -> int | None:
    """Return the time at which time alone may let a claim take more."""
    keys = {job.data.key for job in due if job.data.key is not None}
    openings = [opens_at(queue, key) for key in keys if not is_full(queue, lines, key)]
    at = min([*run_ats, *(at for at in openings if at > queue.now)], default=None)
    rate = queue.settings.rate
    start = 0 if rate is None else rates.next_start(queue.clocks.values.get("", 0), rate)
    if start <= queue.now:
        return at
    return start if in_line else None if at is None else max(at, start)
