"""What one transaction sees: the time, the numbers, and the queues with their ids, leases, keys and logs.

`Queue.put` is the one door: what is asked for by index is written there beside the slot, and nowhere else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import replace

from dibs.model.events import AttemptKind, LogEvent
from dibs.model.job import EMPTY, Slot
from dibs.model.requests import Settings
from dibs.model.results import EnqueueResult
from dibs_sqlite.queries import queries

_encode: Final = msgspec.msgpack.Encoder().encode
_slot: Final = msgspec.msgpack.Decoder(Slot).decode
_settings: Final = msgspec.msgpack.Decoder(Settings).decode
_answer: Final = msgspec.msgpack.Decoder(EnqueueResult).decode
_ATTEMPTS: Final = frozenset(get_args(AttemptKind))


@dataclass(frozen=True)
class Lease:
    """A lease on one queue. Alive while now < expires_at, unless it was dropped."""

    id: str
    holder: str
    expires_at: int
    dropped: bool = False


class Step:
    """One transaction. The numbers drawn in it are above every earlier one, and at least now in us."""

    def __init__(self, connection: sqlite3.Connection, now: int, kept: int, number: int) -> None:
        self.now = now
        self.number = number
        self._kept = (kept, number)
        self._connection = connection
        self._changes = connection.total_changes
        self._queues: dict[str, Queue] = {}

    def query(self, name: str, **words: Any) -> sqlite3.Cursor:
        """Run one of sql/queries.sql."""
        return self._connection.execute(queries()[name], words)

    def one(self, name: str, **words: Any) -> Any:
        """Return the first column of the first row; None without rows."""
        row = self.query(name, **words).fetchone()
        return None if row is None else row[0]

    def draw(self) -> int:
        """Draw a seq, revision, fence or offset: one counter, under the write lock, for them all."""
        self.number = max(self.number + 1, self.now * 1000)
        return self.number

    def queue(self, name: str) -> Queue:
        """Return a queue; one that is not known is there once something is put."""
        if name not in self._queues:
            self._queues[name] = Queue(self, name)
        return self._queues[name]

    def close(self) -> None:
        """Write down what belongs to queues and place; a step that changed nothing writes nothing."""
        for queue in self._queues.values():
            queue.close()
        wrote = self._connection.total_changes != self._changes
        if wrote and (self.now, self.number) != self._kept:
            self.query("keep_place", now=self.now, number=self.number)

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return self._connection.total_changes != self._changes


class Queue:
    """One queue within a transaction."""

    def __init__(self, step: Step, name: str) -> None:
        self.name = name
        self._step = step
        row = step.query("queue", queue=name).fetchone()
        packed, *marks = row or (None, 0, 0, 0, 0)
        self.settings = Settings() if packed is None else _settings(packed)
        self.work: int
        self.gone: int
        self.log_size: int
        self.trimmed: int
        self.work, self.gone, self.log_size, self.trimmed = marks
        self._before = None if row is None else self._row()
        self._used = self._worked = self._ended = self._lost = False

    def _row(self) -> dict[str, Any]:
        return {
            "settings": _encode(self.settings),
            "work": self.work,
            "gone": self.gone,
            "log_size": self.log_size,
            "trimmed": self.trimmed,
        }

    def close(self) -> None:
        """Write down what belongs to the queue itself."""
        if self._worked:
            self.work = self._step.draw()
        if self._lost:
            self.gone = self._step.draw()
        row = self._row()
        if row != self._before and (self._used or self._before is not None):
            self.query("keep_queue", **row)

    def query(self, name: str, **words: Any) -> sqlite3.Cursor:
        """Run a query about this queue."""
        return self._step.query(name, queue=self.name, **words)

    def one(self, name: str, **words: Any) -> Any:
        """Return the first column of the first row of a query about this queue."""
        return self._step.one(name, queue=self.name, **words)

    # -- ids -----------------------------------------------------------------------------------------

    def get(self, id: str) -> Slot:
        """Return the slot of an id, EMPTY where nothing is known; its outcome may have expired."""
        body = self.one("slot", id=word(id))
        return EMPTY if body is None else _slot(body)

    def put(self, id: str, before: Slot, after: Slot) -> None:
        """Let the slot of an id, which was `before`, be `after`; an empty one removes it."""
        self._used = True
        job, outcome = after.current, after.outcome
        waits = job is not None and job.run is None
        # Where few may be active, any change of a current may make room.
        if waits or (self.settings.max_active is not None and before.current is not None):
            self._worked = True
        ended = outcome is not before.outcome or after.dropped != before.dropped or job is None
        if job is None and outcome is None:
            self._lost = True
            self.query("remove_slot", id=id)
            return
        run = job.run if job is not None else None
        self.query(
            "keep_slot",
            id=id,
            state=None if job is None else "w" if run is None else "h" if run.lease is None else "a",
            priority=job.data.priority if job is not None else None,
            run_at=job.run_at if job is not None else None,
            seq=job.seq if job is not None else None,
            lease=run.lease if run is not None else None,
            asked=run is not None and run.lease is not None and run.cancel_requested,
            blocked=after.successor is not None,
            ended=outcome.kind if outcome is not None else None,
            expires_at=outcome.expires_at if outcome is not None else None,
            changed=self._step.draw() if ended else None,
            body=_encode(after),
        )

    def due(self, limit: int) -> list[Slot]:
        """Return the first due ids in the order of claims."""
        found: list[Slot] = []
        for (priority,) in self.query("priorities").fetchall():
            if len(found) >= limit:
                break
            rows = self.query("due", priority=priority, now=self._step.now, limit=limit - len(found))
            found += [_slot(body) for _, body in rows]
        return found

    def listed(
        self, state: str | None, after: str, until: str | None, limit: int
    ) -> Iterator[tuple[str, Slot]]:
        """Return ids in a state behind one and up to another, each with its slot."""
        ends = {"after": word(after), "until": None if until is None else word(until)}
        rows = self.query("list", state=state, **ends, now=self._step.now, limit=limit)
        return ((id, _slot(body)) for id, body in rows)

    def split(self, state: str | None, parts: int) -> list[str]:
        """Return the ids at which those in a state fall into equal parts."""
        rows = self.query("split", state=state, parts=parts, now=self._step.now)
        return [id for (id,) in rows]

    # -- settings, leases, request keys ----------------------------------------------------------------

    def set(self, settings: Settings) -> None:
        """Let the queue be set like this."""
        self._used = self._worked = True
        self.settings = settings

    def lease(self, id: str) -> Lease | None:
        """Return a lease that is alive."""
        row = self.query("lease", lease=word(id)).fetchone()
        if row is None or row[1] <= self._step.now:
            return None
        return Lease(id, row[0], row[1], bool(row[2]))

    def put_lease(self, lease: Lease) -> None:
        """Let a lease be like this."""
        self._used = True
        self.query(
            "keep_lease",
            lease=lease.id,
            holder=lease.holder,
            expires_at=lease.expires_at,
            dropped=lease.dropped,
        )

    def held(self, lease: str, limit: int) -> list[str]:
        """Return ids of jobs under a lease."""
        return [id for (id,) in self.query("held", lease=word(lease), limit=limit)]

    def remembered(self, key: str) -> EnqueueResult | None:
        """Return what a request_key was answered, within its time."""
        packed = self.one("request_key", key=key, now=self._step.now)
        return None if packed is None else replace(_answer(packed), repeated=True)

    def remember(self, key: str, answer: EnqueueResult) -> None:
        """Keep what a request_key was answered."""
        self._used = True
        expires_at = self._step.now + self.settings.request_key_age
        self.query("keep_request_key", key=key, answer=_encode(answer), expires_at=expires_at)

    # -- the log ---------------------------------------------------------------------------------------

    def tell(self, event: LogEvent) -> None:
        """Say what happened, as far as the log level wants to know."""
        level = self.settings.log_level
        if level == "off" or (level == "runs" and event.kind not in _ATTEMPTS):
            return
        self._used = True
        body = _encode(event)
        self.query("append", number=self._step.draw(), at=self._step.now, body=body)
        self.log_size += len(body)
        if self.log_size > self.settings.log_bytes:
            self.trim(oldest_at=0)

    def trim(self, oldest_at: int) -> int:
        """Forget the events that are older, or beyond the size of the log; return how many."""
        count = 0
        for number, at, size in self.query("oldest_events"):
            if at >= oldest_at and self.log_size <= self.settings.log_bytes:
                break
            self.log_size -= size
            self.trimmed = number
            count += 1
        if count:
            self.query("trim", through=self.trimmed)
        return count


def word(text: str) -> str:
    """Return what a query can ask for: what is no UTF-8 was never kept, and neither was the empty text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ""
    return text
