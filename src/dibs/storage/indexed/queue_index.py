"""The index of one queue. Claim and settle cost O(log n), however many jobs wait.

A slot holds the job, successor and outcome of one id. Every change of a slot goes through `QueueIndex.put`,
which alone updates the data derived from the slots: heaps, counts, the jobs of each lease, the expiries. A
change leaves the old entry in its heap. Readers skip such a stale entry, because it differs from its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from dibs.model import rates, rules
from dibs.model.job import EMPTY, ActiveRun, Job, Outcome, Slot
from dibs.model.requests import Settings
from dibs.storage.indexed.event_log import Entry, EventLog
from dibs.storage.indexed.key_lines import KeyLines
from dibs.storage.indexed.orders import (
    QUEUE_CLOCK,
    ClaimOrder,
    Due,
    KeptOutcomes,
    SortedIds,
    StartClocks,
    find_waiting_job,
    waiting_job,
)
from dibs.storage.indexed.output import Output
from dibs.storage.indexed.records import Changes, Lease, RequestKey, Turn

#: The entry of a scheduled job: (run_at, seq, id, -priority).
Scheduled = tuple[int, int, str, int]


class QueueIndex:
    """The slots, leases, request keys, settings and log of one queue.

    `on_change` is called with the QueueIndex at its first change in each step. `draw` returns a new number.
    """

    def __init__(self, name: str, on_change: Callable[[QueueIndex], None], draw: Callable[[], int]) -> None:
        self.name = name
        self.settings = Settings()
        self.slots: dict[str, Slot] = {}
        self.leases: dict[str, Lease] = {}
        self.keys: dict[str, RequestKey] = {}
        self.clocks = StartClocks()
        self.outputs: dict[str, Output] = {}
        #: The turns of the keys with waiting jobs, if the queue is `fair`.
        self.turns: dict[str, Turn] = {}
        self.log = EventLog()
        self.listing = SortedIds(self.slots)
        #: The changes of the current step; None between steps and before its first change.
        self.changes: Changes | None = None
        self._on_change = on_change
        self._draw = draw
        #: True after the first change ever: then the queue exists.
        self.used = False
        #: Grows whenever a claim might find more jobs than before. It is the token of claims and waits.
        self.work_version = 0
        self._init_derived_data()

    def _init_derived_data(self) -> None:
        self.now = 0
        self.due = ClaimOrder()
        self.scheduled: list[Scheduled] = []
        self.key_lines = KeyLines(self.slots, self.due, self.clocks.values, self.turns)
        self._lines_by_key = self.key_lines.by_key
        #: The time at which the setting `rate` allows the next start, in ms; not later than now if it does.
        self.opens_at = 0
        self.waiting = 0
        self.retrying = 0
        self.active = 0
        self.handed_off = 0
        self.blocked = 0
        self.outcomes = KeptOutcomes(self.slots)
        self.held: dict[str, dict[str, None]] = {}
        self.cancel_requested: set[str] = set()
        self.lease_expiries: list[tuple[int, str]] = []
        self.key_expiries: list[tuple[int, str]] = []

    # -- puts ----------------------------------------------------------------------------------------

    def step_changes(self) -> Changes:
        """Return the changes of the current step, for a change of the queue."""
        if self.changes is None:
            self.changes = Changes(used_before=self.used, work_before=self.work_version)
            self.used = True
            self._on_change(self)
        return self.changes

    def put(self, id: str, after: Slot) -> None:
        """Set the slot of an id to `after`, and move the turns of its keys; EMPTY removes the id."""
        if self.settings.fair:
            self._move_turns(self.slots.get(id, EMPTY).current, after.current)
        self.restore(id, after)

    def restore(self, id: str, after: Slot) -> None:
        """Set the slot of an id to `after`. The turns that belong to it were stored and are put beside it."""
        before = self.slots.get(id, EMPTY)
        changes = self.changes or self.step_changes()
        if id not in changes.slots:
            changes.slots[id] = before
        if after.outcome is None and after.current is None and after == EMPTY:
            self.slots.pop(id, None)
        else:
            self.slots[id] = after
            if before is EMPTY:
                self.listing.add(id)
        current = after.current
        if before.current is not current:
            self._put_current(id, before.current, current)
            if self._lines_by_key or (current is not None and self.key_lines.key_of(current) is not None):
                self.work_version += self.key_lines.move(before.current, current)
        if before.successor is not after.successor:
            self.blocked += (after.successor is not None) - (before.successor is not None)
        if before.outcome is not after.outcome:
            self.outcomes.put(id, before.outcome, after.outcome, self.now)
            changes.ended.append(id)
        elif before.dropped is not after.dropped or after.current is None:
            changes.ended.append(id)

    def _put_current(self, id: str, before: Job | None, after: Job | None) -> None:
        if before is not None:
            if before.run is None:
                self.waiting -= 1
                self.retrying -= before.is_retrying
            elif after is not None and after.run is not None and before.run.lease == after.run.lease:
                self._mark_cancel_request(id, after.run)
                return
            else:
                self._remove_active(id, before.run)
        if after is None:
            return
        run = after.run
        if run is None:
            self.waiting += 1
            self.retrying += after.is_retrying
            self._add_waiting(id, after)
            return
        self.active += 1
        if run.lease is None:
            self.handed_off += 1
            return
        held = self.held.get(run.lease)
        if held is None:
            held = self.held[run.lease] = {}
        held[id] = None
        if run.cancel_requested:
            self.cancel_requested.add(id)

    def _mark_cancel_request(self, id: str, run: ActiveRun) -> None:
        if run.cancel_requested and run.lease is not None:
            self.cancel_requested.add(id)
        else:
            self.cancel_requested.discard(id)

    def _remove_active(self, id: str, run: ActiveRun) -> None:
        """Take a run out of the derived data, after its job has left the state active."""
        self.active -= 1
        if run.lease is None:
            self.handed_off -= 1
            return
        held = self.held[run.lease]
        del held[id]
        if not held:
            del self.held[run.lease]
        self.cancel_requested.discard(id)
        if self.settings.max_active is not None:
            self.work_version += 1

    def _add_waiting(self, id: str, job: Job) -> None:
        if job.run_at > self.now:
            heappush(self.scheduled, (job.run_at, job.seq, id, -job.data.priority))
            self.work_version += 1
        elif self.key_lines.key_of(job) is None:
            self.due.add((-job.data.priority, 0, job.run_at, job.seq, id))
            self.work_version += 1
        # A due job with a key goes into the line of its key.
        if len(self.due) + len(self.scheduled) > 2 * self.waiting + 1000:
            self._drop_stale_entries()

    def _drop_stale_entries(self) -> None:
        """Drop the stale entries of both heaps, once they are the larger part. Every update adds one."""
        self.due.replace_all([e for e in set(self.due) if self._find_claimable(e)])
        self.scheduled = [e for e in set(self.scheduled) if self._find_scheduled(e)]
        heapify(self.scheduled)

    def _find_scheduled(self, entry: Scheduled) -> Job | None:
        run_at, seq, id, minus_priority = entry
        return find_waiting_job(self.slots, (minus_priority, 0, run_at, seq, id))

    def _find_claimable(self, entry: Due) -> Job | None:
        """Return the job of an entry in the claim order, if it waits and its key is open."""
        job = find_waiting_job(self.slots, entry)
        if job is None or (key := self.key_lines.key_of(job)) is None or self.key_lines.is_head(key, entry):
            return job
        return None

    def put_lease(self, id: str, after: Lease | None) -> None:
        """Set a lease to `after`; None removes it."""
        before = self.leases.get(id)
        self.step_changes().leases.setdefault(id, before)
        if after is None:
            self.leases.pop(id, None)
            return
        self.leases[id] = after
        if before is None or after.expires_at < before.expires_at:
            heappush(self.lease_expiries, (after.expires_at, id))

    def put_key(self, key: str, after: RequestKey | None) -> None:
        """Set a request key to `after`; None removes it."""
        self.step_changes().keys.setdefault(key, self.keys.get(key))
        if after is None:
            self.keys.pop(key, None)
            return
        self.keys[key] = after
        heappush(self.key_expiries, (after.expires_at, key))

    def put_clock(self, key: str, after: int | None) -> None:
        """Set the clock of a key or of the queue (QUEUE_CLOCK), in us; None removes it."""
        before = self.clocks.values.get(key)
        self.step_changes().clocks.setdefault(key, before)
        self.clocks.set(key, after)
        if key == QUEUE_CLOCK:
            self._update_opening()
        if before is not None and after is not None and after < before and self.waiting:
            self.work_version += 1

    def _update_opening(self) -> None:
        rate = self.settings.rate
        clock = self.clocks.values.get(QUEUE_CLOCK, 0)
        self.opens_at = 0 if rate is None else rates.next_start(clock, rate)

    def charge_start(self, key: str | None) -> None:
        """Charge the start of a run to the clocks of its queue and its key, before the job becomes active."""
        clocks, rate, key_rate = self.clocks.values, self.settings.rate, self.settings.key_rate
        if rate is not None:
            self.put_clock(QUEUE_CLOCK, rates.charge_start(clocks.get(QUEUE_CLOCK, 0), rate, self.now))
        if key is not None and key_rate is not None:
            self.put_clock(key, rates.charge_start(clocks.get(key, 0), key_rate, self.now))

    def charge_cost(self, key: str | None, cost: int) -> None:
        """Move the clocks of the queue and of a key by the cost of a run, before the run leaves its lease."""
        clocks, rate, key_rate = self.clocks.values, self.settings.rate, self.settings.key_rate
        if rate is not None:
            self.put_clock(QUEUE_CLOCK, rates.charge_cost(clocks.get(QUEUE_CLOCK, 0), rate, cost, self.now))
        if key is not None and key_rate is not None:
            self.put_clock(key, rates.charge_cost(clocks.get(key, 0), key_rate, cost, self.now))

    def put_turn(self, key: str, after: Turn | None) -> None:
        """Set the turn of a key, or of the jobs without a key (NO_KEY); None removes it.

        The next put of a job of the key, or of the settings, moves the head of its line.
        """
        self.step_changes().turns.setdefault(key, self.turns.get(key))
        if after is None:
            self.turns.pop(key, None)
        else:
            self.turns[key] = after

    def _move_turns(self, before: Job | None, after: Job | None) -> None:
        """Move the turns of the keys of a job, before its slot changes (contract 2, Turns of keys)."""
        lines = self.key_lines
        left = None if before is None or before.run is not None else lines.key_of(before)
        entered = None if after is None or after.run is not None else lines.key_of(after)
        if left == entered:
            return
        if entered is not None and entered not in self.turns:
            self.put_turn(entered, (self._draw(), 0))
        if left is None:
            return
        if lines.by_key[left].waiting == 1:
            self.put_turn(left, None)
        elif after is not None and after.run is not None:
            self._count_start(left)

    def _count_start(self, key: str) -> None:
        """Count a start of a key in its turn. After as many starts as its share, the key goes to the back."""
        place, starts = self.turns[key]
        is_over = starts + 1 >= self.settings.shares.get(key, 1)
        self.put_turn(key, (self._draw(), 0) if is_over else (place, starts + 1))

    def change_turns(self, before: Settings, after: Settings) -> None:
        """Begin all turns again if `fair` was changed, and else those of the keys whose share was changed."""
        if before.fair == after.fair:
            for key in rules.changed_shares(before, after):
                if key in self.turns:
                    self.put_turn(key, (self.turns[key][0], 0))
            return
        for key in list(self.turns):
            self.put_turn(key, None)
        for key in self.key_lines.keys_in_order() if after.fair else ():
            self.put_turn(key, (self._draw(), 0))
        self.key_lines.update_all_heads()

    def put_settings(self, after: Settings) -> None:
        changes = self.step_changes()
        changes.settings = changes.settings or self.settings
        self._apply_settings(after)

    def _apply_settings(self, settings: Settings) -> None:
        self.work_version += 1
        self.settings = settings
        self.key_lines.apply_settings(settings)
        self._update_opening()

    def put_entry(self, entry: Entry) -> None:
        self.step_changes().entries.append(entry)
        self.log.append(entry)

    def put_output(self, id: str, after: Output | None) -> None:
        """Set the output of an id to `after`; None removes it."""
        self.step_changes().outputs.setdefault(id, self.outputs.get(id))
        if after is None:
            self.outputs.pop(id, None)
        else:
            self.outputs[id] = after

    def put_reported(self, ids: list[str]) -> None:
        """Note the ids whose runs have reported progress or output in this step."""
        self.step_changes().reported += ids

    def put_trim(self, through: int) -> int:
        """Trim the log up to the entry number `through`; return the number of removed entries."""
        changes = self.step_changes()
        if changes.trimmed_before is None:
            changes.trimmed_before = self.log.trimmed
        gone = self.log.trim(through)
        changes.trimmed_entries += gone
        return len(gone)

    def undo(self, changes: Changes) -> None:
        # Restore the trimmed entries first: they may include entries that the step appended.
        if changes.trimmed_before is not None:
            self.log.restore(changes.trimmed_entries, changes.trimmed_before)
        self.log.drop_last(len(changes.entries))
        for key, clock in changes.clocks.items():
            self.put_clock(key, clock)
        for key, turn in changes.turns.items():
            self.put_turn(key, turn)
        if changes.settings is not None:
            self._apply_settings(changes.settings)
            self.key_lines.update_all_heads()
        for lease, held in changes.leases.items():
            self.put_lease(lease, held)
        for key, known in changes.keys.items():
            self.put_key(key, known)
        for id, output in changes.outputs.items():
            self.put_output(id, output)
        for id, slot in changes.slots.items():
            self.restore(id, slot)

    # -- time ----------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Set the time of the queue to `now`, ms: scheduled jobs fall due and outcomes expire."""
        if now <= self.now:
            return
        # A wait that begins after this moment must notice the jobs that may now be claimed.
        self.work_version += self.key_lines.advance(now)
        self.work_version += self.now < self.opens_at <= now and self.has_due()
        self.now = now
        while self.scheduled and self.scheduled[0][0] <= now:
            self._add_fallen_due(heappop(self.scheduled))
        self.outcomes.advance(now)

    def _add_fallen_due(self, entry: Scheduled) -> None:
        run_at, seq, id, minus_priority = entry
        job = self._find_scheduled(entry)
        if job is None:
            return
        due = (minus_priority, 0, run_at, seq, id)
        if (key := self.key_lines.key_of(job)) is None:
            self.due.add(due)
            self.work_version += 1
        else:
            self.work_version += self.key_lines.add_due(key, due)

    def pop_due(self) -> Slot | None:
        """Remove the next job to claim from the claim order. Return its slot, or None if none is admitted."""
        if self.opens_at > self.now:
            return None
        slots, lines = self.slots, self.key_lines
        while (entry := self.due.pop()) is not None:
            slot = slots.get(entry[4], EMPTY)
            job = waiting_job(slot, entry)
            if job is not None and ((key := lines.key_of(job)) is None or lines.take(key, entry)):
                return slot
        return None

    def has_due(self) -> bool:
        """Return whether a due job waits whose key is open. The setting `rate` may still hold it back."""
        while (entry := self.due.first()) is not None:
            if self._find_claimable(entry):
                return True
            self.due.pop()
        return False

    def next_due(self) -> int | None:
        """Return the next time at which time alone may let a claim take more, in ms, or None."""
        at = self._next_scheduled()
        opening = self.key_lines.next_opening()
        if opening is not None and (at is None or opening < at):
            at = opening
        if self.opens_at <= self.now:
            return at
        if self.has_due():
            return self.opens_at
        return None if at is None else max(at, self.opens_at)

    def _next_scheduled(self) -> int | None:
        """Return the time at which the next scheduled job falls due, in ms; None if no job is scheduled."""
        while self.scheduled:
            if self._find_scheduled(self.scheduled[0]):
                return self.scheduled[0][0]
            heappop(self.scheduled)
        return None

    def first_expired_lease(self, now: int) -> str | None:
        """Return the id of an expired lease; None, in O(1), if no lease has expired."""
        ends = self.lease_expiries
        while ends and ends[0][0] <= now:
            expires_at, id = ends[0]
            lease = self.leases.get(id)
            if lease is not None and lease.expires_at == expires_at:
                return id
            heappop(ends)
            if lease is not None:
                heappush(ends, (lease.expires_at, id))
        return None

    def count_scheduled(self) -> int:
        """Return the number of jobs that fall due later than now."""
        return len({e[2] for e in self.scheduled if self._find_scheduled(e)})

    def pop_key_expiry(self) -> tuple[int, str]:
        """Remove and return the earliest expiry of a request key, as (expires_at, key)."""
        return heappop(self.key_expiries)

    @property
    def expired(self) -> dict[str, Outcome]:
        """The expired outcomes that prune has not yet removed, in the order of their expiry."""
        return self.outcomes.expired

    @property
    def headroom(self) -> int | None:
        """The number of further jobs that the setting max_active allows to be active; None for no limit.

        Handed-off runs do not count.
        """
        if self.settings.max_active is None:
            return None
        return max(0, self.settings.max_active - (self.active - self.handed_off))
