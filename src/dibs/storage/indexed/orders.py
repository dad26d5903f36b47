"""The ordered collections of one queue: due jobs, ids, the expiries of outcomes, and the clocks of rates."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from dibs.model.job import EMPTY, EndKind, Job, Outcome, Slot

#: (-priority, place, run_at, seq, id) of a due job. These tuples sort in the order of claims (contract 2).
#: The place is that of its key in a queue with `fair`, else 0. seq is a growing number that a job gets when
#: it is enqueued or retried.
Due = tuple[int, int, int, int, str]


class ClaimOrder:
    """A priority queue of due jobs, smallest entry first.

    Most entries arrive in order and go through a deque, in O(1). Only an entry that sorts before an earlier
    one (a higher priority, a job that fell due late) goes through a heap.
    """

    def __init__(self) -> None:
        self._in_order: deque[Due] = deque()
        self._out_of_order: list[Due] = []

    def __len__(self) -> int:
        return len(self._in_order) + len(self._out_of_order)

    def __iter__(self) -> Iterator[Due]:
        yield from self._in_order
        yield from self._out_of_order

    def add(self, entry: Due) -> None:
        in_order = self._in_order
        if not in_order or in_order[-1] < entry:
            in_order.append(entry)
        else:
            heappush(self._out_of_order, entry)

    def first(self) -> Due | None:
        """Return the entry of the next job to claim, which stays; None if no job is due."""
        out_of_order, in_order = self._out_of_order, self._in_order
        if out_of_order and (not in_order or out_of_order[0] < in_order[0]):
            return out_of_order[0]
        return in_order[0] if in_order else None

    def pop(self) -> Due | None:
        """Remove and return the entry of the next job to claim; None if no job is due."""
        out_of_order, in_order = self._out_of_order, self._in_order
        if out_of_order and (not in_order or out_of_order[0] < in_order[0]):
            return heappop(out_of_order)
        return in_order.popleft() if in_order else None

    def replace_all(self, entries: Iterable[Due]) -> None:
        self._in_order = deque(sorted(entries))
        self._out_of_order = []


def find_waiting_job(slots: dict[str, Slot], entry: Due) -> Job | None:
    """Return the waiting job of an entry; None if the entry is stale: the job has changed or is gone."""
    return waiting_job(slots.get(entry[4], EMPTY), entry)


def due_entry(job: Job) -> Due:
    return -job.data.priority, 0, job.run_at, job.seq, job.id


def waiting_job(slot: Slot, entry: Due) -> Job | None:
    """Return the waiting job of an entry whose id has this slot; None if the entry is stale."""
    minus_priority, _, run_at, seq, _ = entry
    job = slot.current
    if (
        job is not None
        and job.run is None
        and job.seq == seq
        and job.run_at == run_at
        and job.data.priority == -minus_priority
    ):
        return job
    return None


class Ids(Sized, Iterable[str], Protocol):
    """The ids that a queue has now, in any order."""

    def __contains__(self, id: object, /) -> bool: ...


class SortedIds:
    """A sorted list of ids, created at the first listing and updated from then on.

    A sorted tree would cost each enqueue 2 to 3 us. Instead, new ids are appended, and the next page sorts
    the list; a nearly sorted list takes one pass. Removed ids stay in the list and are skipped. Once they are
    the larger part, the list is created again.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._sorted: list[str] | None = None
        self._dirty = False

    def add(self, id: str) -> None:
        if self._sorted is not None:
            self._sorted.append(id)
            self._dirty = True
            if self._is_mostly_gone(self._sorted):
                # Ids came and went without a listing. Free the memory of the list; the next listing creates
                # it again.
                self._sorted = None

    def ids_after(self, id: str | None, until: str | None = None) -> Iterator[str]:
        """Yield the ids after `id` and up to `until`, in order; None is no bound."""
        ordered = self._sort_ids()
        start = 0 if id is None else bisect_right(ordered, id)
        end = len(ordered) if until is None else bisect_right(ordered, until)
        latest = None
        for position in range(start, end):
            found = ordered[position]
            # An id that was removed and added again is in the list twice.
            if found != latest and found in self._ids:
                yield found
            latest = found

    def _sort_ids(self) -> list[str]:
        if self._sorted is None or self._is_mostly_gone(self._sorted):
            self._sorted = sorted(self._ids)
        elif self._dirty:
            self._sorted.sort()
        self._dirty = False
        return self._sorted

    def _is_mostly_gone(self, ids: list[str]) -> bool:
        return len(ids) > 2 * len(self._ids) + 1000


class KeptOutcomes:
    """Values derived from the outcomes in `slots`. QueueIndex reports each change of an outcome."""

    def __init__(self, slots: dict[str, Slot]) -> None:
        self._slots = slots
        #: The number of outcomes of each kind that have not expired.
        self.counts: dict[EndKind, int] = {"completed": 0, "failed": 0, "cancelled": 0}
        #: Expired outcomes in the order of their expiry, until prune removes them.
        self.expired: dict[str, Outcome] = {}
        #: A heap of (expires_at, id). An entry is stale if the outcome of its id has changed.
        self.expiries: list[tuple[int, str]] = []
        #: The length of `expiries` above which stale entries are dropped.
        self._max_expiries = 1000

    def put(self, id: str, before: Outcome | None, after: Outcome | None, now: int) -> None:
        if before is not None and self.expired.pop(id, None) is None:
            self.counts[before.kind] -= 1
        if after is None:
            return
        if after.expires_at is None:
            self.counts[after.kind] += 1
        elif after.expires_at <= now:
            self.expired[id] = after
        else:
            self.counts[after.kind] += 1
            heappush(self.expiries, (after.expires_at, id))
            if len(self.expiries) > self._max_expiries:
                self._drop_stale_expiries()

    def _drop_stale_expiries(self) -> None:
        """Drop the expiries of replaced outcomes.

        Otherwise an id that ends every second, with a retention of a week, would leave 604,800 expiries.
        """
        self._max_expiries = 2 * sum(self.counts.values()) + 1000
        if len(self.expiries) <= self._max_expiries:
            return
        self.expiries = [(at, id) for at, id in set(self.expiries) if self._expiry(id) == at]
        heapify(self.expiries)

    def _expiry(self, id: str) -> int | None:
        outcome = self._slots.get(id, EMPTY).outcome
        return None if outcome is None else outcome.expires_at

    def advance(self, now: int) -> None:
        """Expire the outcomes whose time has come."""
        while self.expiries and self.expiries[0][0] <= now:
            expires_at, id = heappop(self.expiries)
            outcome = self._slots.get(id, EMPTY).outcome
            if outcome is not None and outcome.expires_at == expires_at and id not in self.expired:
                self.expired[id] = outcome
                self.counts[outcome.kind] -= 1


#: The name of the clock of the queue; a key has at least one letter.
QUEUE_CLOCK: Final = ""
#: The number of stale entries in the heap that is always allowed.
MOST_STALE: Final = 1000


class StartClocks:
    """The clocks by key, in us since the epoch, and the order in which they have no more effect."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        #: A heap of (clock, key). Each clock has one entry, which may be earlier than the clock is now.
        self._ends: list[tuple[int, str]] = []

    def set(self, key: str, clock: int | None) -> None:
        """Set a clock; None removes it."""
        if clock is None:
            self.values.pop(key, None)
            return
        if key not in self.values:
            heappush(self._ends, (clock, key))
        self.values[key] = clock
        if len(self._ends) > 2 * len(self.values) + MOST_STALE:
            self._ends = [(end, key) for key, end in self.values.items()]
            heapify(self._ends)

    def first_past(self, now: int) -> str | None:
        """Return the key of a clock that is not later than `now`, in ms since the epoch, or None."""
        ends = self._ends
        while ends and ends[0][0] <= now * 1000:
            end, key = ends[0]
            clock = self.values.get(key)
            if clock == end:
                return key
            heappop(ends)
            if clock is not None:
                heappush(ends, (clock, key))
        return None
