"""What is worth saying of a history: stretches in which nobody worked, ids that keep failing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

MINUTE: Final = 60_000
#: Shorter stretches without a claim happen to a fleet that is well.
MIN_OUTAGE_MS: Final = 3 * MINUTE
#: How often an id must have gone wrong, and in which part of its attempts, to be named.
POISON_MIN_FAILURES: Final = 5
POISON_MIN_SHARE: Final = 0.8
#: The ends of an attempt that went wrong.
FAILURE_ENDS: Final = ("failed", "retried", "stalled", "timed_out")


class Outage(Struct, frozen=True, kw_only=True):
    """Jobs were due and nothing was claimed or ended: no worker, a paused queue, a storage out of reach."""

    queues: tuple[str, ...]
    #: Whole minutes, ms since the epoch; `end` is the first one after it.
    begin: int
    end: int
    #: Jobs that were due when it ended.
    due: int
    #: Runs that were found lost afterwards: their workers died.
    stalled: int = 0


class PoisonId(Struct, frozen=True, kw_only=True):
    """An id that goes wrong nearly every time it is run."""

    queue: str
    id: str
    attempts: int
    completed: int
    #: End -> how often, of those that went wrong.
    bad: dict[str, int]
    #: Its part of all that went wrong in its queue.
    share: float
    error_type: str | None = None


def find_outages(queue: str, minutes: Sequence[Mapping[str, Any]], usual_run_ms: int) -> list[Outage]:
    """Return the stretches of minutes without a claim or an end while jobs were due.

    A fleet whose slots are all taken by long runs is silent as well: a stretch counts from three times
    `usual_run_ms`, the 95th percentile of its run times.
    """
    shortest = max(MIN_OUTAGE_MS, 3 * usual_run_ms)
    found = []
    for stretch in _stretches(minutes):
        begin, end = stretch[0]["minute"], stretch[-1]["minute"] + MINUTE
        if end - begin >= shortest:
            after = [m["stalled"] for m in minutes if end <= m["minute"] < end + 5 * MINUTE]
            found.append(
                Outage(
                    queues=(queue,), begin=begin, end=end, due=stretch[-1]["backlog_due"], stalled=sum(after)
                )
            )
    return found


def _stretches(minutes: Sequence[Mapping[str, Any]]) -> Iterable[list[Mapping[str, Any]]]:
    stretch: list[Mapping[str, Any]] = []
    for minute in minutes:
        silent = not minute["claims"] and not minute["attempts"] and minute["backlog_due"] > 0
        follows = bool(stretch) and minute["minute"] == stretch[-1]["minute"] + MINUTE
        if stretch and not (silent and follows):
            yield stretch
            stretch = []
        if silent:
            stretch.append(minute)
    if stretch:
        yield stretch


def merge_outages(outages: Iterable[Outage]) -> list[Outage]:
    """Return outages of several queues at the same time as one, longest first."""
    groups: list[list[Outage]] = []
    for outage in sorted(outages, key=lambda one: one.begin):
        for group in groups:
            if _overlap(group[0], outage) * 2 > min(_length(group[0]), _length(outage)):
                group.append(outage)
                break
        else:
            groups.append([outage])
    joined = [
        Outage(
            queues=tuple(sorted(queue for one in group for queue in one.queues)),
            begin=min(one.begin for one in group),
            end=max(one.end for one in group),
            due=sum(one.due for one in group),
            stalled=sum(one.stalled for one in group),
        )
        for group in groups
    ]
    return sorted(joined, key=lambda one: (-_length(one), one.begin))


def _length(outage: Outage) -> int:
    return outage.end - outage.begin


def _overlap(one: Outage, other: Outage) -> int:
    return min(one.end, other.end) - max(one.begin, other.begin)


def find_poison_ids(queue: str, ids: Iterable[Mapping[str, Any]], bad_in_all: int) -> list[PoisonId]:
    """Return, of some rows of `ids`, those that go wrong nearly every time, worst first."""
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
    return sorted(found, key=lambda one: (-sum(one.bad.values()), one.id))
