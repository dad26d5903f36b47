"""The findings of a report: outages, in which no worker claimed jobs, and ids that fail repeatedly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dibs.model.requests import StartRate

MINUTE: Final = 60_000
#: Least length of an outage, ms. Shorter pauses without a claim also occur when all workers run well.
MIN_OUTAGE_MS: Final = 3 * MINUTE
#: Least number of failures of a poison id, and their least share of its attempts.
POISON_MIN_FAILURES: Final = 5
POISON_MIN_SHARE: Final = 0.8
#: Ends of attempts that count as failures.
FAILURE_ENDS: Final = ("failed", "retried", "stalled", "timed_out")


class Outage(Struct, frozen=True, kw_only=True):
    """A period in which jobs were due and no job was claimed or ended.

    Its cause is a missing worker, a paused queue or an unreachable storage.
    """

    queues: tuple[str, ...]
    #: First minute, ms since the epoch.
    begin: int
    #: First minute after the outage, ms since the epoch.
    end: int
    #: Jobs that were due at its end.
    due: int
    #: Runs that stalled in the five minutes after it: their workers had died.
    stalled: int = 0


class PoisonId(Struct, frozen=True, kw_only=True):
    """An id whose attempts fail nearly every time."""

    queue: str
    id: str
    attempts: int
    completed: int
    #: Kind of failure -> number of attempts.
    bad: dict[str, int]
    #: Failures of this id, divided by all failures of its queue (0 to 1).
    share: float
    error_type: str | None = None


def find_outages(
    queue: str, minutes: Sequence[Mapping[str, Any]], usual_run_ms: int, rate: StartRate | None = None
) -> list[Outage]:
    """Return the periods of minutes without a claim or an end while jobs were due.

    If long runs take all slots of the workers, the queue is silent too. So a period must be at least
    three times `usual_run_ms`, the 95th percentile of the run times, three times the time between two starts
    that the `rate` of the queue allows, and at least MIN_OUTAGE_MS.
    """
    pace_ms = 0 if rate is None else rate.per / rate.starts
    shortest = max(MIN_OUTAGE_MS, 3 * usual_run_ms, 3 * pace_ms)
    outages = []
    for period in _silent_periods(minutes):
        begin, end = period[0]["minute"], period[-1]["minute"] + MINUTE
        if end - begin >= shortest:
            stalled = sum(m["stalled"] for m in minutes if end <= m["minute"] < end + 5 * MINUTE)
            due = period[-1]["backlog_due"]
            outages.append(Outage(queues=(queue,), begin=begin, end=end, due=due, stalled=stalled))
    return outages


def _silent_periods(minutes: Sequence[Mapping[str, Any]]) -> Iterable[list[Mapping[str, Any]]]:
    period: list[Mapping[str, Any]] = []
    for minute in minutes:
        is_silent = not minute["claims"] and not minute["attempts"] and minute["backlog_due"] > 0
        follows = bool(period) and minute["minute"] == period[-1]["minute"] + MINUTE
        if period and not (is_silent and follows):
            yield period
            period = []
        if is_silent:
            period.append(minute)
    if period:
        yield period


def merge_outages(outages: Iterable[Outage]) -> list[Outage]:
    """Return simultaneous outages of several queues as one outage, the longest first."""
    groups: list[list[Outage]] = []
    for outage in sorted(outages, key=lambda outage: outage.begin):
        for group in groups:
            if _overlap_ms(group[0], outage) * 2 > min(_duration_ms(group[0]), _duration_ms(outage)):
                group.append(outage)
                break
        else:
            groups.append([outage])
    merged = [
        Outage(
            queues=tuple(sorted(queue for outage in group for queue in outage.queues)),
            begin=min(outage.begin for outage in group),
            end=max(outage.end for outage in group),
            due=sum(outage.due for outage in group),
            stalled=sum(outage.stalled for outage in group),
        )
        for group in groups
    ]
    return sorted(merged, key=lambda outage: (-_duration_ms(outage), outage.begin))


def _duration_ms(outage: Outage) -> int:
    return outage.end - outage.begin


def _overlap_ms(outage: Outage, other: Outage) -> int:
    return min(outage.end, other.end) - max(outage.begin, other.begin)


def find_poison_ids(queue: str, ids: Iterable[Mapping[str, Any]], bad_in_all: int) -> list[PoisonId]:
    """Return the rows of `ids` that fail nearly every time, those with most failures first."""
    found = []
    for row in ids:
        bad = {end: row[end] for end in FAILURE_ENDS if row[end]}
        times = sum(bad.values())
        if times >= POISON_MIN_FAILURES and times >= POISON_MIN_SHARE * row["attempts"]:
            found.append(
                PoisonId(
                    queue=queue,
                    id=row["id"],
                    attempts=row["attempts"],
                    completed=row["completed"],
                    bad=bad,
                    share=times / bad_in_all,
                )
            )
    return sorted(found, key=lambda poison: (-sum(poison.bad.values()), poison.id))
