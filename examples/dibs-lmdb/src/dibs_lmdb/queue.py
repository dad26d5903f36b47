"""One queue within a step: its ids with all their indexes, its leases, its request keys and its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dibs.errors import StorageDamaged
from dibs.model import rules
from dibs.model.events import LogEvent
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.requests import Settings
from dibs.model.results import EnqueueResult
from dibs.storage.indexed.output import Output
from dibs.storage.offsets import format_offset
from dibs_lmdb import keys
from dibs_lmdb.environment import EnvironmentStep
from dibs_lmdb.records import (
    IdRecord,
    LeaseRecord,
    LogEntry,
    QueueRecord,
    RequestRecord,
    TurnRecord,
    pack,
    unpack,
)

NO_KEY = ""
"""The name of the jobs without a key among the turns of keys. A key has at least one letter."""

LAST_PLACE = b"\xff" * 33
"""Sorts after each key of a priority: run_at, seq and id have 32 bytes."""

RUN_LEVEL_KINDS = frozenset(
    {"completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released"}
)

STATE_BYTES = {
    "waiting": b"w",
    "active": b"a",
    "handed_off": b"h",
    "blocked": b"b",
    "completed": b"C",
    "failed": b"F",
    "cancelled": b"X",
}
STATE_OF_BYTE = {byte: state for state, byte in STATE_BYTES.items()}


class QueueRecords:
    def __init__(self, step: EnvironmentStep, name: str) -> None:
        self.step, self.name, self.key = step, name, keys.digest(name)
        packed = step.get(keys.QUEUE + self.key)
        self._stored = packed
        self.record = (
            QueueRecord(name) if packed is None else unpack(QueueRecord, packed, f"the queue {name!r}")
        )
        self._events: list[LogEvent] = []

    def prefix(self, tag: bytes) -> bytes:
        return tag + self.key

    # Ids

    def get(self, id: str) -> Slot:
        return self._read(keys.digest(id), id).slot

    def by_hash(self, hashed: bytes) -> IdRecord:
        """Return the id to which an index entry leads."""
        found = self._read(hashed)
        if found.slot == EMPTY:
            raise StorageDamaged(f"queue {self.name!r}: an index leads to an id that does not exist")
        return found

    def ended_number(self, id: str) -> int:
        """Return the number of the latest end of a job of an id.

        For an id without a trace, return the number of the latest end that left no trace of its id.
        """
        found = self._read(keys.digest(id), id)
        return self.record.gone if found.slot == EMPTY else found.ended

    def reported_number(self, id: str) -> int:
        """Return the number of the latest report of progress by a run of an id."""
        return self._read(keys.digest(id), id).reported

    def mark_reported(self, id: str) -> None:
        """Wake the waits for progress of an id."""
        hashed = keys.digest(id)
        record = self._read(hashed, id)
        record.reported = self.record.reported = self.step.draw()
        self.step.put(self.prefix(keys.SLOT) + hashed, pack(record))

    def output(self, id: str) -> Output | None:
        """Return the output of an id, also that of an expired outcome; None if it has none."""
        packed = self.step.get(self.prefix(keys.OUTPUT) + keys.digest(id))
        return None if packed is None else unpack(Output, packed, f"the output of {id!r} in {self.name!r}")

    def put_output(self, id: str, output: Output | None) -> None:
        key = self.prefix(keys.OUTPUT) + keys.digest(id)
        if output is None:
            self.step.delete(key)
        else:
            self.step.put(key, pack(output))

    def change_output(self, id: str, change: Callable[[Output], Output | None]) -> None:
        """Replace the output of an id by what `change` makes of it, if it has any."""
        if (known := self.output(id)) is not None:
            self.put_output(id, change(known))

    def _read(self, hashed: bytes, id: str = "") -> IdRecord:
        packed = self.step.get(self.prefix(keys.SLOT) + hashed)
        return IdRecord(id) if packed is None else unpack(IdRecord, packed, f"queue {self.name!r}, id {id!r}")

    def put(self, id: str, before: Slot, after: Slot) -> None:
        """Store a slot and change its index entries. `before` is the stored slot."""
        hashed = keys.digest(id)
        if after.current is None and after.outcome is None:
            after = EMPTY
        stored = self._read(hashed, id)
        record = IdRecord(id, after, stored.ended, stored.reported)
        if _has_ended(before, after):
            record.ended = self.step.draw()
            if after == EMPTY:
                self.record.gone = record.ended
        old, new = self._entries(hashed, before), self._entries(hashed, after)
        for key in old.keys() - new.keys():
            self.step.delete(key)
        for key, value in new.items():
            if old.get(key) != value:
                self.step.put(key, value)
        if after == EMPTY:
            self.step.delete(self.prefix(keys.SLOT) + hashed)
        else:
            self.step.put(self.prefix(keys.SLOT) + hashed, pack(record))
        self._count(before, after)
        if self.record.settings.fair:
            self._move_turns(before.current, after.current)

    def _entries(self, hashed: bytes, slot: Slot) -> dict[bytes, bytes]:
        entries: dict[bytes, bytes] = {}
        job, outcome = slot.current, slot.outcome
        if job is not None and job.run is None:
            entries = self._places(job, hashed)
        if job is not None and job.run is not None and job.run.lease is not None:
            key = self.prefix(keys.LEASE_JOB) + keys.digest(job.run.lease) + hashed
            entries[key] = b"c" if job.run.cancel_requested else b""
        if outcome is not None and outcome.expires_at is not None:
            key = self.prefix(keys.OUTCOME_EXPIRY) + keys.number(outcome.expires_at) + hashed
            entries[key] = STATE_BYTES[outcome.kind]
        for state in _states(slot):
            entries[self.prefix(keys.STATE) + STATE_BYTES[state] + hashed] = b""
        return entries

    def _places(self, job: Job, hashed: bytes) -> dict[bytes, bytes]:
        """Return the entries of a waiting job in the order of claims."""
        place = keys.priority(job.data.priority) + keys.number(job.run_at) + keys.number(job.seq) + hashed
        settings = self.record.settings
        if job.data.key is not None and settings.shares.get(job.data.key) == 0:
            return {self.prefix(keys.PAUSED) + place: b""}
        entries = {self.prefix(keys.DUE) + place: b""}
        if settings.fair:
            entries[self.prefix(keys.LINE) + keys.digest(job.data.key or NO_KEY) + place] = b""
        return entries

    def _count(self, before: Slot, after: Slot) -> None:
        record = self.record
        for state in _counted(before):
            record.states[state] -= 1
        for state in _counted(after):
            record.states[state] = record.states.get(state, 0) + 1
        left = _is_under_lease(before) and not _is_under_lease(after)
        record.under_leases += _is_under_lease(after) - _is_under_lease(before)
        job = after.current
        waits_anew = job is not None and job.run is None and _place(before) != _place(after)
        if waits_anew or (left and record.settings.max_active is not None):
            record.work = self.step.draw()

    # Turns of keys

    def configure(self, settings: Settings) -> None:
        """Obey new settings. A change of `fair`, or of the paused keys, costs time for each waiting job."""
        before = self.record.settings
        changed = rules.changed_shares(before, settings)
        pauses = any(0 in (before.shares.get(key), settings.shares.get(key)) for key in changed)
        if settings.fair == before.fair and not pauses:
            self.record.settings = settings
        else:
            waiting = self.step.scan(self.prefix(keys.STATE) + STATE_BYTES["waiting"])
            jobs = [
                (hashed, job) for hashed, _ in list(waiting) if (job := self.by_hash(hashed).slot.current)
            ]
            for hashed, job in jobs:
                for entry in self._places(job, hashed):
                    self.step.delete(entry)
            self.record.settings = settings
            for hashed, job in jobs:
                for entry in self._places(job, hashed):
                    self.step.put(entry)
            if settings.fair != before.fair:
                self._begin_all_turns([job for _, job in jobs])
        for key in changed if settings.fair else ():
            if (turn := self._turn(keys.digest(key))) is not None:
                turn.starts = 0
                self._put_turn(keys.digest(key), turn)

    def _begin_all_turns(self, jobs: list[Job]) -> None:
        for key, packed in list(self.step.scan(self.prefix(keys.TURN))):
            self.step.delete(self.prefix(keys.TURN) + key)
            self.step.delete(
                self.prefix(keys.PLACE) + keys.number(unpack(TurnRecord, packed, "a turn").place)
            )
        for job in sorted(jobs, key=lambda job: (-job.data.priority, job.run_at, job.seq)):
            if self.record.settings.fair:
                self._move_turns(None, job)

    def _move_turns(self, before: Job | None, after: Job | None) -> None:
        """Move the turns of the keys of a job that has changed (contract 2, Turns of keys)."""
        left, entered = _waiting_key(before), _waiting_key(after)
        if left == entered:
            return
        if entered is not None:
            hashed = keys.digest(entered)
            turn = self._turn(hashed) or TurnRecord(self.step.draw())
            turn.waiting += 1
            self._put_turn(hashed, turn)
        if left is None:
            return
        hashed = keys.digest(left)
        turn = unpack(
            TurnRecord, self.step.get(self.prefix(keys.TURN) + hashed) or b"", f"the turn of {left!r}"
        )
        self._remove_turn(hashed, turn)
        turn.waiting -= 1
        if after is not None and after.run is not None:
            turn.starts += 1
            if turn.starts >= self.record.settings.shares.get(left, 1):
                turn.place, turn.starts = self.step.draw(), 0
        if turn.waiting:
            self._put_turn(hashed, turn)

    def _turn(self, hashed: bytes) -> TurnRecord | None:
        packed = self.step.get(self.prefix(keys.TURN) + hashed)
        return None if packed is None else unpack(TurnRecord, packed, f"a turn of queue {self.name!r}")

    def _put_turn(self, hashed: bytes, turn: TurnRecord) -> None:
        self.step.put(self.prefix(keys.TURN) + hashed, pack(turn))
        self.step.put(self.prefix(keys.PLACE) + keys.number(turn.place), hashed)

    def _remove_turn(self, hashed: bytes, turn: TurnRecord) -> None:
        self.step.delete(self.prefix(keys.TURN) + hashed)
        self.step.delete(self.prefix(keys.PLACE) + keys.number(turn.place))

    def _next_turn(self, level: bytes) -> IdRecord | None:
        """Return the first due job of a priority, of the key whose turn comes first.

        Each key before it in the ring costs a look-up.
        """
        for _, hashed in self.step.scan(self.prefix(keys.PLACE)):
            found = self.step.first(self.prefix(keys.LINE) + hashed + level)
            if found is not None and keys.read_number(found[0][:8]) <= self.step.now:
                return self.by_hash(found[0][-keys.HASH :])
        return None

    # Order

    def next_due_job(self) -> IdRecord | None:
        """Return the first id in the order of claims. Each priority with waiting jobs costs one look-up."""
        for place in self._first_of_each_priority(None):
            if keys.read_number(place[2:10]) <= self.step.now:
                return (
                    self._next_turn(place[:2])
                    if self.record.settings.fair
                    else self.by_hash(place[-keys.HASH :])
                )
        return None

    def next_run_at(self, after: int) -> int | None:
        """Return the earliest `run_at` later than `after`."""
        times = (keys.read_number(place[2:10]) for place in self._first_of_each_priority(after))
        return min(times, default=None)

    def _first_of_each_priority(self, after: int | None) -> Iterator[bytes]:
        """Yield the first place of each priority, of all jobs or of those with a `run_at` above `after`."""
        prefix, start = self.prefix(keys.DUE), b""
        while (found := self.step.first(prefix, start)) is not None:
            level = found[0][:2]
            if after is None:
                yield found[0]
            elif (later := self.step.first(prefix + level, keys.number(after + 1))) is not None:
                yield level + later[0]
            start = level + LAST_PLACE

    def has_room(self) -> bool:
        most = self.record.settings.max_active
        return most is None or self.record.under_leases < most

    # Leases

    def lease(self, lease: str) -> LeaseRecord | None:
        packed = self.step.get(self.prefix(keys.LEASE) + keys.digest(lease))
        return None if packed is None else unpack(LeaseRecord, packed, f"a lease of queue {self.name!r}")

    def put_lease(self, hashed: bytes, before: LeaseRecord | None, after: LeaseRecord | None) -> None:
        if before is not None:
            self.step.delete(self.prefix(keys.LEASE_EXPIRY) + keys.number(before.expires) + hashed)
        if after is None:
            self.step.delete(self.prefix(keys.LEASE) + hashed)
        else:
            self.step.put(self.prefix(keys.LEASE_EXPIRY) + keys.number(after.expires) + hashed)
            self.step.put(self.prefix(keys.LEASE) + hashed, pack(after))

    def expired_leases(self) -> list[tuple[bytes, LeaseRecord]]:
        expired: list[tuple[bytes, LeaseRecord]] = []
        for key, _ in self.step.scan(self.prefix(keys.LEASE_EXPIRY)):
            if keys.read_number(key[:8]) > self.step.now:
                break
            packed = self.step.get(self.prefix(keys.LEASE) + key[8:])
            if packed is not None:
                expired.append((key[8:], unpack(LeaseRecord, packed, f"a lease of queue {self.name!r}")))
        return expired

    def jobs_under(
        self, hashed: bytes, limit: int | None = None, *, cancel_requested: bool = False
    ) -> list[IdRecord]:
        found: list[IdRecord] = []
        for key, flag in self.step.scan(self.prefix(keys.LEASE_JOB) + hashed):
            if limit is not None and len(found) == limit:
                break
            if flag or not cancel_requested:
                found.append(self.by_hash(key))
        return found

    def number_under(self, hashed: bytes) -> int:
        return sum(1 for _ in self.step.scan(self.prefix(keys.LEASE_JOB) + hashed))

    # Request keys

    def request(self, request_key: str) -> RequestRecord | None:
        """Return the result that is remembered for a request key."""
        found = self._request(keys.digest(request_key))
        return found if found is not None and self.step.now < found.expires else None

    def remember(self, request_key: str, result: EnqueueResult) -> None:
        hashed = keys.digest(request_key)
        self.forget_request(hashed)
        expires = self.step.now + self.record.settings.request_key_age
        self.step.put(self.prefix(keys.REQUEST) + hashed, pack(RequestRecord(expires, result)))
        self.step.put(self.prefix(keys.REQUEST_EXPIRY) + keys.number(expires) + hashed)

    def forget_request(self, hashed: bytes) -> None:
        found = self._request(hashed)
        if found is not None:
            self.step.delete(self.prefix(keys.REQUEST) + hashed)
            self.step.delete(self.prefix(keys.REQUEST_EXPIRY) + keys.number(found.expires) + hashed)

    def _request(self, hashed: bytes) -> RequestRecord | None:
        packed = self.step.get(self.prefix(keys.REQUEST) + hashed)
        return (
            None if packed is None else unpack(RequestRecord, packed, f"a request key of queue {self.name!r}")
        )

    # The log

    def log(self, event: LogEvent) -> None:
        level = self.record.settings.log_level
        if level == "all" or (level == "runs" and event.kind in RUN_LEVEL_KINDS):
            self._events.append(event)

    def save(self) -> None:
        """Write the queue and the events of the step."""
        if self._events:
            number = self.step.draw()
            packed = pack(LogEntry(self.step.now, self._events))
            self.step.put(self.prefix(keys.EVENTS) + keys.number(number), packed)
            self.record.logged, self.record.logged_number = (
                format_offset(number, len(self._events) - 1),
                number,
            )
            self.record.log_bytes += len(packed)
            self._events = []
        packed = pack(self.record)
        if packed != self._stored:
            self.step.put(self.prefix(keys.QUEUE), packed)


class Queues:
    """The queues that a step uses, by name."""

    def __init__(self, step: EnvironmentStep) -> None:
        self.step = step
        self._opened: dict[str, QueueRecords] = {}

    def __getitem__(self, name: str) -> QueueRecords:
        if name not in self._opened:
            self._opened[name] = QueueRecords(self.step, name)
        return self._opened[name]

    def save(self) -> None:
        for queue in self._opened.values():
            queue.save()


def _states(slot: Slot) -> list[str]:
    """Return the states of an id that do not depend on the time."""
    states: list[str] = []
    if slot.current is not None:
        states.append("waiting" if slot.current.run is None else "active")
        if slot.current.run is not None and slot.current.run.lease is None:
            states.append("handed_off")
    if slot.successor is not None:
        states.append("blocked")
    if slot.outcome is not None:
        states.append(slot.outcome.kind)
    return states


def _counted(slot: Slot) -> list[str]:
    """Return the names of the counts, without `scheduled`, that an id adds to."""
    is_retrying = slot.current is not None and slot.current.is_retrying
    return [*_states(slot), "retrying"] if is_retrying else _states(slot)


def _is_under_lease(slot: Slot) -> bool:
    return slot.current is not None and slot.current.run is not None and slot.current.run.lease is not None


def _waiting_key(job: Job | None) -> str | None:
    """Return the key of a waiting job, or NO_KEY; None for a job that does not wait."""
    return None if job is None or job.run is not None else job.data.key or NO_KEY


def _place(slot: Slot) -> tuple[int, int, int] | None:
    job = slot.current
    return None if job is None or job.run is not None else (job.data.priority, job.run_at, job.seq)


def _has_ended(before: Slot, after: Slot) -> bool:
    return (
        (before.current is not None and after.current is None)
        or (after.outcome is not None and after.outcome != before.outcome)
        or (after.dropped != before.dropped and after.current is not None)
    )
