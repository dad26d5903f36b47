"""The capacity advice: a simulation of the busiest hour with more or fewer concurrent runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from math import ceil
from typing import Any, Final

from msgspec import Struct

from dibs.client.calls.handler import PROCESS_UNITS, SIZE
from dibs.model.requests import StartRate

MINUTE: Final = 60_000
WINDOW_MINUTES: Final = 60
#: Largest number of slots that is tried.
MAX_SLOTS: Final = 4096


class CapacityAdvice(Struct, frozen=True, kw_only=True):
    """The result of the simulation of one queue. Times are ms."""

    #: Begin of the simulated hour, ms since the epoch.
    begin: int
    end: int
    #: Attempts that fell due in this hour.
    attempts: int
    target_wait_p95_ms: int
    #: Fewest concurrent runs that meet the target; None if MAX_SLOTS do not meet it.
    slots: int | None
    #: `slots` in capacity units.
    units: int | None
    #: `slots` in worker processes of 100 units. Each process runs as many whole runs as fit.
    processes: int | None
    #: Capacity units of a run: the `size` of the queue's handler; None if it is unknown. Then 10 is used,
    #: the default of a `def`.
    size: int | None
    #: Largest number of concurrent runs in the whole history.
    seen_slots: int
    #: (slots, p95 wait) for some numbers of slots around the result.
    curve: tuple[tuple[int, int], ...]


def busiest_hour(minutes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return begin and end (ms) of the hour in which most jobs arrived."""
    arrivals = {row["minute"]: row["arrivals"] for row in minutes}
    best, most = min(arrivals), -1
    for begin in arrivals:
        count = sum(arrivals.get(begin + n * MINUTE, 0) for n in range(WINDOW_MINUTES))
        if count > most:
            best, most = begin, count
    return best, best + WINDOW_MINUTES * MINUTE


def advise(
    due_and_run: Sequence[tuple[int, int]],
    window: tuple[int, int],
    target_ms: int,
    seen_slots: int,
    size: int | None = None,
    rate: StartRate | None = None,
) -> CapacityAdvice | None:
    """Return the advice for attempts, given as (due, run time) in ms; None without attempts.

    `size` is the number of capacity units of a run, 1 to 100; None if it is unknown. `rate` is the limit of
    the queue on starts: no number of slots makes waits shorter than it allows.
    """
    units = SIZE if size is None else size
    jobs = sorted(due_and_run)
    if not jobs:
        return None
    enough = _fewest_slots(jobs, target_ms, rate)
    around = {max(1, round((enough or MAX_SLOTS) * part)) for part in (0.5, 0.65, 0.8, 0.9, 1, 1.15, 1.5, 2)}
    return CapacityAdvice(
        begin=window[0],
        end=window[1],
        attempts=len(jobs),
        target_wait_p95_ms=target_ms,
        slots=enough,
        units=None if enough is None else enough * units,
        processes=None if enough is None else -(-enough // (PROCESS_UNITS // units)),
        size=size,
        seen_slots=seen_slots,
        curve=tuple((slots, simulate_wait_p95(jobs, slots, rate)) for slots in sorted(around)),
    )


def _fewest_slots(jobs: Sequence[tuple[int, int]], target_ms: int, rate: StartRate | None) -> int | None:
    """Return the fewest slots that meet the target.

    Binary search works as more slots never lengthen a wait.
    """
    high = 1
    while simulate_wait_p95(jobs, high, rate) > target_ms:
        high *= 2
        if high > MAX_SLOTS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if simulate_wait_p95(jobs, middle, rate) > target_ms:
            low = middle
        else:
            high = middle
    return high


def simulate_wait_p95(jobs: Sequence[tuple[int, int]], slots: int, rate: StartRate | None = None) -> int:
    """Return the 95th percentile of the waits (ms) of jobs, sorted by due time, on this many slots."""
    pace = 0.0 if rate is None else rate.per / rate.starts
    ahead = 0.0
    slack = 0.0 if rate is None else (rate.burst - 1) * pace
    free = [0] * slots
    heapify(free)
    waits = []
    for due, run in jobs:
        # `ahead` is the time at which a run would start if all starts before it had kept the pace.
        start = max(due, free[0], ceil(ahead - slack))
        ahead = max(ahead, start) + pace
        heapreplace(free, start + run)
        waits.append(start - due)
    waits.sort()
    return waits[(95 * len(waits) + 99) // 100 - 1]
