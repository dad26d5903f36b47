"""A queue in parts that are read side by side: its ids, and its log.

Where ids are cut the storage says itself. A log is cut by asking: offsets are opaque, and a storage promises
only that they sort. So a guess between two of them is made as if they were numbers, and what counts is the
offset of the event that the storage then answers with: one that it handed out. A bad guess makes stretches of
different lengths, a storage that refuses it one stretch, and neither loses or doubles an event.
"""

from __future__ import annotations

import string
from collections.abc import Iterator

from dibs.errors import Refused
from dibs.model.check_arguments import MOST_PARTS
from dibs.model.results import Counts, State
from dibs.spark.connection import StorageConnection

_DIGITS = frozenset(string.hexdigits)
#: Ids for which a task of Spark's is worth its start, some 50 ms: they take about as long to read.
MIN_IDS_PER_PARTITION = 1000


def id_ranges(
    connection: StorageConnection, queue: str, state: State | None, parts: int
) -> list[tuple[str | None, str | None]]:
    """Return up to `parts` parts of all ids, or of those in a state, each of at least about WORTH ids."""
    if parts > 1:
        counts = connection.run(connection.storage.counts([queue]))[queue]
        parts = min(parts, MOST_PARTS, _size(counts, state) // MIN_IDS_PER_PARTITION)
    cuts = connection.run(connection.storage.split(queue, parts, state=state)) if parts > 1 else ()
    return list(zip((None, *cuts), (*cuts, None), strict=True))


def _size(counts: Counts, state: State | None) -> int:
    if state is not None:
        return int(getattr(counts, state))
    # One that waits beside the outcome of an earlier run counts twice, which makes parts a little smaller.
    return counts.waiting + counts.active + counts.completed + counts.failed + counts.cancelled


def offset_ranges(
    connection: StorageConnection, queue: str, after: str | None, until: str, parts: int
) -> list[tuple[str | None, str]]:
    """Return up to `parts` stretches of a log: together, what lies behind `after` and up to `until`."""
    ends = [*sorted({*_bounds(connection, queue, after, until, parts)}), until]
    return list(zip([after, *ends[:-1]], ends, strict=True))


def _bounds(
    connection: StorageConnection, queue: str, after: str | None, until: str, parts: int
) -> Iterator[str]:
    if parts < 2 or (first := _next(connection, queue, after)) is None:
        return
    for part in range(1, parts):
        guess = interpolate_offset(first, until, part / parts)
        found = None if guess is None else _next(connection, queue, guess)
        if found is not None and first <= found < until:
            yield found


def _next(connection: StorageConnection, queue: str, after: str | None) -> str | None:
    """Return the offset of the first event behind another, if the storage takes that for one."""
    try:
        page = connection.run(connection.storage.events(queue, after=after, limit=1))
    except Refused:
        return None
    return page.events[0][0] if page.events else None


def interpolate_offset(low: str, high: str, share: float) -> str | None:
    """Return text about `share` of the way from one offset to another; None if they look strange."""
    marks = [place for place, sign in enumerate(low) if sign not in _DIGITS]
    if len(low) != len(high) or any(low[place] != high[place] for place in marks):
        return None
    digits = [[sign for sign in text if sign in _DIGITS] for text in (low, high)]
    if not digits[0] or len(digits[0]) != len(digits[1]):
        return None
    start, end = (int("".join(each), 16) for each in digits)
    guess = list(f"{start + int((end - start) * share):0{len(digits[0])}x}")
    for place in marks:
        guess.insert(place, low[place])
    return "".join(guess)
