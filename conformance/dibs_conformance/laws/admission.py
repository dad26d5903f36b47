"""Keys and limits as the answers of a storage show them: settings, starts, and the room of each key.

A rate allows a start if each stretch of w µs up to it then holds at most `burst + w // interval` starts
(contract 2). The laws use this definition. The oracle uses the clocks, which must give the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field

from dibs.model.job import Job
from dibs.model.requests import Settings, StartRate


@define
class ObservedLimits:
    """The settings of one queue, and its starts since its rates were set, in ms since the epoch."""

    settings: Settings = field(factory=Settings)
    queue_starts: list[int] = field(factory=list)
    key_starts: dict[str, list[int]] = field(factory=dict)

    def configure(self, after: Settings) -> None:
        """Replace the settings, and forget the starts under each rate that changed."""
        before, self.settings = self.settings, after
        if before.rate != after.rate:
            self.queue_starts = []
        if before.key_rate != after.key_rate:
            self.key_starts = {}

    def add_start(self, key: str | None, now: int) -> None:
        self.queue_starts.append(now)
        if key is not None:
            self.key_starts.setdefault(key, []).append(now)


class Admission:
    """The admission of jobs in one queue, during a claim or after a call."""

    def __init__(self, limits: ObservedLimits, active: Iterable[Job]) -> None:
        """Create the admission from the limits and the jobs that are active under leases. Neither changes."""
        self.settings = limits.settings
        self._runs = Counter(job.data.key for job in active)
        self._queue_starts = list(limits.queue_starts)
        self._key_starts = {key: list(starts) for key, starts in limits.key_starts.items()}

    @property
    def has_headroom(self) -> bool:
        """True if the setting `max_active` allows another run."""
        most = self.settings.max_active
        return most is None or self._runs.total() < most

    def take(self, key: str | None, now: int) -> None:
        """Add a run that started at `now`."""
        self._runs[key] += 1
        self._queue_starts.append(now)
        if key is not None:
            self._key_starts.setdefault(key, []).append(now)

    def has_room(self, key: str | None) -> bool:
        most = self.settings.per_key
        return key is None or most is None or self._runs[key] < most

    def opens_at(self, key: str | None) -> int:
        """Return the first ms at which both rates allow a start of a job with this key."""
        time = first_start(self.settings.rate, self._queue_starts)
        if key is None:
            return time
        return max(time, first_start(self.settings.key_rate, self._key_starts.get(key, ())))

    def admits(self, job: Job, now: int) -> bool:
        """Return whether a job is due and admitted at `now`."""
        key = job.data.key
        return job.run_at <= now and self.has_room(key) and self.opens_at(key) <= now

    def next_opening(self, waiting: Iterable[Job], now: int) -> int | None:
        """Return the first ms after `now` at which time alone admits one of the waiting jobs."""
        rooms = [job for job in waiting if self.has_room(job.data.key)]
        times = (max(job.run_at, self.opens_at(job.data.key)) for job in rooms)
        return min((time for time in times if time > now), default=None)


def interval_of(rate: StartRate) -> int:
    """Return the interval of a rate in µs, rounded up."""
    return (rate.per * 1000 + rate.starts - 1) // rate.starts


def first_start(rate: StartRate | None, starts: Sequence[int]) -> int:
    """Return the first ms at which another start keeps the rate; 0 without a rate."""
    if rate is None:
        return 0
    interval, count = interval_of(rate), len(starts)
    # Counted from start i, the next start is number count - i + 1.
    times = (at * 1000 + (count - i + 1 - rate.burst) * interval for i, at in enumerate(starts))
    return -(-max(times, default=0) // 1000)


def most_starts(rate: StartRate, ms: int) -> int:
    """Return the largest number of starts in a stretch of time."""
    return rate.burst + ms * 1000 // interval_of(rate)
