"""Ranges of ids and of log offsets, so that several tasks can read one queue in parallel.

The storage itself returns the bounds of id ranges. For a log, offsets are opaque texts and a storage only
promises that they sort. So `interpolate_offset` treats two offsets as numbers and guesses one between them;
the bound is the offset of the event that the storage returns for this guess. A bad guess makes ranges of
different lengths, and a guess that the storage refuses makes one range. Both are correct: no event is lost
or read twice.
"""

from __future__ import annotations

import string
from collections.abc import Iterator

from dibs.errors import Refused
from dibs.model.check_arguments import MAX_PARTS
from dibs.model.results import Counts, State
from dibs.spark.connection import StorageConnection

_DIGITS = frozenset(string.hexdigits)
#: Least number of ids in a partition. Starting a Spark task takes some 50 ms, about as long as reading this
#: many ids.
MIN_IDS_PER_PARTITION = 1000


def id_ranges(
    connection: StorageConnection, queue: str, state: State | None, parts: int
) -> list[tuple[str | None, str | None]]:
    """Return up to `parts` ranges (after, until) of all ids, or of the ids in a state.

    A range has at least about MIN_IDS_PER_PARTITION ids.
    """
    if parts > 1:
        counts = connection.run(connection.storage.counts([queue]))[queue]
        parts = min(parts, MAX_PARTS, _count_ids(counts, state) // MIN_IDS_PER_PARTITION)
    cuts = connection.run(connection.storage.split(queue, parts, state=state)) if parts > 1 else ()
    return list(zip((None, *cuts), (*cuts, None), strict=True))


def _count_ids(counts: Counts, state: State | None) -> int:
    if state is not None:
        return int(getattr(counts, state))
    # A waiting job with the outcome of an earlier run counts twice, which makes the ranges a little smaller.
    return counts.waiting + counts.active + counts.completed + counts.failed + counts.cancelled


def offset_ranges(
    connection: StorageConnection, queue: str, after: str | None, until: str, parts: int
) -> list[tuple[str | None, str]]:
    """Return up to `parts` ranges (after, until) that together cover a log from `after` to `until`."""
    ends = [*sorted({*_range_bounds(connection, queue, after, until, parts)}), until]
    return list(zip([after, *ends[:-1]], ends, strict=True))


def _range_bounds(
    connection: StorageConnection, queue: str, after: str | None, until: str, parts: int
) -> Iterator[str]:
    if parts < 2 or (first := _first_offset_after(connection, queue, after)) is None:
        return
    for part in range(1, parts):
        guess = interpolate_offset(first, until, part / parts)
        found = None if guess is None else _first_offset_after(connection, queue, guess)
        if found is not None and first <= found < until:
            yield found


def _first_offset_after(connection: StorageConnection, queue: str, after: str | None) -> str | None:
    """Return the offset of the first event behind `after`.

    Return None if no such event exists or the storage refuses `after`.
    """
    try:
        page = connection.run(connection.storage.events(queue, after=after, limit=1))
    except Refused:
        return None
    return page.events[0][0] if page.events else None


def interpolate_offset(low: str, high: str, share: float) -> str | None:
    """Return a text at the given share of the way from one offset to another.

    Hexadecimal digits are interpolated and other characters are kept. Return None if the two offsets have
    different forms.
    """
    separators = [index for index, char in enumerate(low) if char not in _DIGITS]
    if len(low) != len(high) or any(low[index] != high[index] for index in separators):
        return None
    digits = [[char for char in text if char in _DIGITS] for text in (low, high)]
    if not digits[0] or len(digits[0]) != len(digits[1]):
        return None
    start, end = (int("".join(each), 16) for each in digits)
    guess = list(f"{start + int((end - start) * share):0{len(digits[0])}x}")
    for index in separators:
        guess.insert(index, low[index])
    return "".join(guess)
