"""The lines of the keys of one queue: the jobs that wait under each key, and the keys that may start a run.

A key is open if its share is not 0, it has fewer than `per_key` runs under leases and its clock allows a
start; else it is closed. Each key has a line of its due jobs. Only the head of an open key stands in the line
of the queue, so a claim never meets the jobs of a closed key. A key that its clock closes stands in a heap by
the time at which it opens. A key that is full stands nowhere: the end of one of its runs opens it. Nor does a
key with the share 0, which `configure` opens.

In a queue with `fair`, the line of the queue is in the order of turns: each head has the place of its key.
The jobs without a key then have a line as those of a key have.

A start, a comeback and an arrival each change one key, in O(log n).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from dibs.model import rates
from dibs.model.job import Job, Slot
from dibs.model.requests import Settings
from dibs.storage.indexed.orders import ClaimOrder, Due, due_entry, find_waiting_job
from dibs.storage.indexed.records import Turn

#: The name of the line of the jobs without a key; a key has at least one letter.
NO_KEY: Final = ""
#: A line may have this many stale entries in addition to its number of waiting jobs.
MOST_STALE: Final = 8


class KeyLine:
    """The line of one key. It exists while a job waits or a run is active under a lease."""

    __slots__ = ("due", "head", "runs", "waiting")

    def __init__(self) -> None:
        #: A heap of the due jobs. An entry is stale if it differs from the job of its id.
        self.due: list[Due] = []
        #: The entry of this key in the line of the queue; None if the key is closed or has no due job.
        self.head: Due | None = None
        #: The number of waiting jobs, due or scheduled.
        self.waiting = 0
        #: The number of runs under leases.
        self.runs = 0


class KeyLines:
    """The lines of all keys that have a job. `queue_line` is the claim order of the whole queue."""

    def __init__(
        self, slots: dict[str, Slot], queue_line: ClaimOrder, clocks: dict[str, int], turns: dict[str, Turn]
    ) -> None:
        self._slots = slots
        self._queue_line = queue_line
        self._clocks = clocks
        self._turns = turns
        #: The line of the jobs without a key: NO_KEY if the queue is `fair`. None: they stand in the queue's.
        self._keyless: str | None = None
        self._settings = Settings()
        #: The time of the queue, in ms since the epoch.
        self.now = 0
        self.by_key: dict[str, KeyLine] = {}
        #: The closed keys that have a due job.
        self._closed: dict[str, None] = {}
        #: (time, key) of the keys that their clocks close, in a heap by the time, in ms, at which they open.
        self._openings: list[tuple[int, str]] = []
        #: The time in `_openings` of each key; another entry of the key is stale.
        self._opens_at: dict[str, int] = {}

    def key_of(self, job: Job) -> str | None:
        """Return the name of the line of a job. None: it stands in the line of the queue, without a key."""
        key = job.data.key
        return self._keyless if key is None else key

    def move(self, before: Job | None, after: Job | None) -> bool:
        """Move a job from the line of its old value to that of its new value; each may have no key.

        Return whether a claim may now take more than before, or the time of an opening became known.
        """
        old = None if before is None else self.key_of(before)
        new = None if after is None else self.key_of(after)
        if old == new and _is_same_hold(before, after):
            return False
        freed = before is not None and old is not None and self._leave(old, before)
        if after is not None and new is not None:
            self._enter(new, after)
        if old is not None and old != new:
            self._update_head(old)
        if after is None or new is None:
            return freed
        changed = self._update_head(new)
        if after.run is not None:
            # After a start, a claim may take only less. A hand-off makes room if the key was full.
            return freed
        return freed or changed

    def _leave(self, key: str, job: Job) -> bool:
        """Take a job out of the numbers of its key. Return whether this makes room for a job that waits."""
        line = self.by_key.get(key)
        if line is None:
            return False  # the run was handed off
        if job.run is None:
            line.waiting -= 1
        elif job.run.lease is not None:
            was_full = self._is_full(key, line)
            line.runs -= 1
            return was_full and line.waiting > 0 and not self._is_full(key, line)
        return False

    def _enter(self, key: str, job: Job) -> None:
        line = self.by_key.get(key)
        if line is None:
            line = self.by_key[key] = KeyLine()
        if job.run is None:
            line.waiting += 1
            if job.run_at <= self.now:
                self._push(key, line, due_entry(job))
        elif job.run.lease is not None:
            line.runs += 1

    def add_due(self, key: str, entry: Due) -> bool:
        """Add a scheduled job that fell due. Return whether a claim may now take more than before."""
        self._push(key, self.by_key[key], entry)
        return self._update_head(key)

    def _push(self, key: str, line: KeyLine, entry: Due) -> None:
        heappush(line.due, entry)
        if len(line.due) > 2 * line.waiting + MOST_STALE:
            line.due = [one for one in set(line.due) if self._is_waiting(key, one)]
            heapify(line.due)

    def take(self, key: str, entry: Due) -> bool:
        """Return whether an entry from the line of the queue is the head of an open key.

        Its key has no head from then on: the caller removed the entry and claims the job.
        """
        if not self.is_head(key, entry):
            return False
        self.by_key[key].head = None
        return True

    def is_head(self, key: str, entry: Due) -> bool:
        """Return whether an entry in the line of the queue is the head of an open key, not stale."""
        line = self.by_key.get(key)
        if line is None or line.head != entry:
            return False
        if self._is_full(key, line):
            # `configure` has lowered per_key or the share since the entry was added.
            self._update_head(key)
            return False
        return True

    def next_opening(self) -> int | None:
        """Return the next time at which a key with a due job opens, in ms since the epoch, or None."""
        while self._openings:
            at, key = self._openings[0]
            if self._opens_at.get(key) == at:
                if self._waits_for_clock(key):
                    return at
                del self._opens_at[key]
            heappop(self._openings)
        return None

    def _waits_for_clock(self, key: str) -> bool:
        line = self.by_key.get(key)
        if line is None or line.head is not None or self._is_full(key, line):
            return False
        return self._first_due(key, line) is not None

    def advance(self, now: int) -> bool:
        """Set the time and open the keys whose time has come. Return whether a claim may now take more."""
        self.now = now
        changed = False
        while self._openings and self._openings[0][0] <= now:
            at, key = heappop(self._openings)
            if self._opens_at.get(key) == at:
                del self._opens_at[key]
                changed |= self._update_head(key)
        return changed

    def apply_settings(self, settings: Settings) -> None:
        """Obey new settings: open each closed key that they allow to start, in O(number of closed keys).

        A key that they close is closed when a claim meets its head. A change of `fair` creates all lines
        again.
        """
        before, self._settings = self._settings, settings
        self._keyless = NO_KEY if settings.fair else None
        if before.fair != settings.fair:
            self._create_all()
        elif (before.per_key, before.key_rate, before.shares) != (
            settings.per_key,
            settings.key_rate,
            settings.shares,
        ):
            self._openings, self._opens_at = [], {}
            for key in list(self._closed):
                self._update_head(key)

    def _create_all(self) -> None:
        self.by_key.clear()
        self._closed.clear()
        self._openings, self._opens_at = [], {}
        due: list[Due] = []
        for job in (slot.current for slot in self._slots.values()):
            if job is None:
                continue
            if (key := self.key_of(job)) is not None:
                self._enter(key, job)
            elif job.run is None and job.run_at <= self.now:
                due.append(due_entry(job))
        self._queue_line.replace_all(due)
        self.update_all_heads()

    def keys_in_order(self) -> list[str]:
        """Return the keys with waiting jobs, in the order of their first jobs, due or not."""
        firsts: dict[str, Due] = {}
        for job in (slot.current for slot in self._slots.values()):
            if job is not None and job.run is None and (key := self.key_of(job)) is not None:
                entry = due_entry(job)
                firsts[key] = min(entry, firsts.get(key, entry))
        return sorted(firsts, key=firsts.__getitem__)

    def update_all_heads(self) -> None:
        """Open and close each key by its clock and its runs, after a change that may close any of them."""
        for key in list(self.by_key):
            self._update_head(key)

    def _update_head(self, key: str) -> bool:
        """Put the first due job of an open key into the line of the queue, or close the key.

        Return whether a claim may take a job of the key, or whether the time at which it opens is new.
        """
        line = self.by_key.get(key)
        if line is None:
            return False
        first = self._first_due(key, line)
        if first is None:
            self._remove_head(key, line)
            return False
        if self._is_full(key, line):
            line.head, self._closed[key] = None, None
            return False
        opens_at = self._next_start(key)
        if opens_at > self.now:
            line.head, self._closed[key] = None, None
            return self._add_opening(key, opens_at)
        self._closed.pop(key, None)
        head = first
        if (turn := self._turns.get(key)) is not None:
            head = first[0], turn[0], first[2], first[3], first[4]
        if line.head != head:
            line.head = head
            self._queue_line.add(head)
        return True

    def _remove_head(self, key: str, line: KeyLine) -> None:
        """Note that no job of a key is due. Remove the line if no job of the key is left."""
        line.head = None
        self._closed.pop(key, None)
        if line.waiting == line.runs == 0:
            del self.by_key[key]

    def _add_opening(self, key: str, at: int) -> bool:
        if self._opens_at.get(key) == at:
            return False
        self._opens_at[key] = at
        heappush(self._openings, (at, key))
        return True

    def _is_full(self, key: str, line: KeyLine) -> bool:
        """Return whether the share of a key is 0, or `per_key` of its runs are active."""
        settings = self._settings
        if settings.shares and settings.shares.get(key) == 0:
            return True
        return settings.per_key is not None and key != NO_KEY and line.runs >= settings.per_key

    def _next_start(self, key: str) -> int:
        """Return the earliest time at which the clock of a key allows a start, in ms since the epoch."""
        rate = self._settings.key_rate
        return 0 if rate is None or key == NO_KEY else rates.next_start(self._clocks.get(key, 0), rate)

    def _first_due(self, key: str, line: KeyLine) -> Due | None:
        """Return the entry of the due job of a key that is claimed first. Remove stale entries before it."""
        while line.due and not self._is_waiting(key, line.due[0]):
            heappop(line.due)
        return line.due[0] if line.due else None

    def _is_waiting(self, key: str, entry: Due) -> bool:
        job = find_waiting_job(self._slots, entry)
        return job is not None and self.key_of(job) == key


def _is_same_hold(before: Job | None, after: Job | None) -> bool:
    """Return whether both values are the same run, under the same lease or without one.

    A commit of another process may hold the end of a run and the next claim of its job.
    """
    if before is None or after is None or before.run is None or after.run is None:
        return False
    return before.run.fence == after.run.fence and before.run.lease == after.run.lease
