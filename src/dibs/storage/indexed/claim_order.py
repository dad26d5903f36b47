"""A priority queue for the due jobs of one queue, in the order in which claims take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from dibs.model.job import EMPTY, Job, Slot

#: (-priority, run_at, seq, id) of a due job. These tuples sort in the order of claims (contract 2). seq is a
#: growing number that a job gets when it is enqueued or retried.
Due = tuple[int, int, int, str]


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
    return waiting_job(slots.get(entry[3], EMPTY), entry)


def waiting_job(slot: Slot, entry: Due) -> Job | None:
    """Return the waiting job of an entry whose id has this slot; None if the entry is stale."""
    minus_priority, run_at, seq, _ = entry
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
