"""The account of the limits by key and by rate, from the times of claims and ends in the event log.

The log has the times of the storage, so this account is exact: the clocks of the machines have no influence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from tests.soak.accounting import End


@frozen
class QueueLimits:
    """The limits of one queue. A rate is (starts, seconds, burst)."""

    rate: tuple[int, float, int]
    key_rate: tuple[int, float, int]


#: The queue of the soak whose runs are limited. One run of each key may be active at once.
LIMITED: Mapping[str, QueueLimits] = {"limited": QueueLimits(rate=(20, 1.0, 5), key_rate=(5, 1.0, 2))}


def id_of(key: str, name: str) -> str:
    """Return an id that shows its key, since events have no key."""
    return f"{key}:{name}"


def find_broken_limits(ends: Sequence[End]) -> Iterable[str]:
    """Yield the pairs of runs of one key that overlap, and the runs that started before a rate allowed it."""
    for queue, limits in LIMITED.items():
        by_key: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for end in ends:
            if end.name[0] == queue and end.claimed_at is not None:
                by_key[end.name[1].partition(":")[0]].append((end.claimed_at, round(end.at * 1000)))
        for key, runs in by_key.items():
            yield from _find_overlaps(f"{queue} {key}", sorted(runs))
            yield from _find_early_starts(f"{queue} {key}", [start for start, _ in runs], limits.key_rate)
        starts = [start for runs in by_key.values() for start, _ in runs]
        yield from _find_early_starts(queue, starts, limits.rate)


def _find_overlaps(name: str, runs: list[tuple[int, int]]) -> Iterable[str]:
    for (_, ended), (claimed, _) in pairwise(runs):
        if claimed < ended:
            yield f"{name}: a run was claimed at {claimed}, another one ended at {ended}"


def _find_early_starts(name: str, starts: list[int], rate: tuple[int, float, int]) -> Iterable[str]:
    """Replay the starts. From one start to a later one, at most burst + time / interval runs may start."""
    count, seconds, burst = rate
    interval = -(-round(seconds * 1_000_000) // count)
    full_at = 0
    for start in sorted(starts):
        if full_at > start * 1000 + (burst - 1) * interval:
            yield f"{name}: a run started at {start} ms, {full_at - start * 1000} us of starts ahead"
        full_at = max(full_at, start * 1000) + interval
