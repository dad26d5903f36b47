"""The rows that one transaction reads and writes: clock, counter, and queues with their slots and logs.

A slot holds the job, successor and outcome of one id. Only QueueRows.put writes slots, so the columns that
queries search by always agree with the slot's body.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import StorageDamaged
from dibs.model.events import AttemptKind, LogEvent
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.plain_values import to_plain
from dibs.model.requests import Settings
from dibs.model.results import EnqueueResult
from dibs.storage.clock import JUMP
from dibs.storage.indexed.output import Output
from dibs_sqlite.queries import queries

#: The name of the jobs without a key among the turns of keys. A key has at least one letter.
NO_KEY: Final = ""
#: `to_plain` encodes subclasses of str, bytes and int, as which the members of an Enum arrive.
_encode: Final = msgspec.msgpack.Encoder(enc_hook=to_plain).encode
_decode_slot: Final = msgspec.msgpack.Decoder(Slot).decode
_decode_settings: Final = msgspec.msgpack.Decoder(Settings).decode
_decode_output: Final = msgspec.msgpack.Decoder(Output).decode
_decode_result: Final = msgspec.msgpack.Decoder(EnqueueResult).decode
_ATTEMPT_KINDS: Final = frozenset(get_args(AttemptKind))


class LeaseRow(Struct, frozen=True):
    """The right of a worker to its claimed jobs in one queue. It ends at `expires_at` or with a drop."""

    id: str
    holder: str
    expires_at: int
    dropped: bool = False


class Transaction:
    """One open SQLite transaction, with its time, its counter and its queues."""

    def __init__(
        self, connection: sqlite3.Connection, now: int, lead: int, inode: int, stored: tuple[int, ...]
    ) -> None:
        #: The time of every change in this transaction, ms since the epoch.
        self.now = now
        #: The last number drawn. All seqs, revisions, fences and log offsets come from one counter.
        self.number = stored[1]
        #: Ms by which `now` is ahead of the system's clock.
        self._lead = lead
        #: The inode of the file, and the us by which its numbers are ahead of `now`.
        self._inode, self._ahead = inode, stored[4]
        if stored[3] != inode:
            # The original of this copy may have drawn more numbers (contract 1, Numbers after a loss).
            self._ahead += JUMP
        #: `now`, `number`, the lead, the inode and `ahead` as the file has them.
        self._stored = stored
        self._connection = connection
        self._changes_before = connection.total_changes
        self._queues: dict[str, QueueRows] = {}

    def execute(self, name: str, **params: Any) -> sqlite3.Cursor:
        """Execute the query `name` of sql/queries.sql."""
        return self._connection.execute(queries()[name], params)

    def scalar(self, name: str, **params: Any) -> Any:
        """Return the first column of the first row of a query, or None without rows."""
        row = self.execute(name, **params).fetchone()
        return None if row is None else row[0]

    def draw(self) -> int:
        """Draw a number above every earlier one, for a seq, revision, fence or offset.

        The number is at least the time in us. In a copy of a file, it is an hour further ahead.
        """
        self.number = max(self.number + 1, self.now * 1000 + self._ahead)
        return self.number

    def queue(self, name: str) -> QueueRows:
        """Return a queue. For an unknown name it is empty; the first write to it creates its row."""
        if name not in self._queues:
            self._queues[name] = QueueRows(self, name)
        return self._queues[name]

    def flush(self) -> None:
        """Write the changed rows of the tables `queues` and `storage`. Called right before the commit."""
        for queue in self._queues.values():
            queue.flush()
        names = ("now", "number", "lead", "inode", "ahead")
        values = (self.now, self.number, self._lead, self._inode, self._ahead)
        if self.has_written and values != self._stored:
            self.execute("save_storage", **dict(zip(names, values, strict=True)))

    @property
    def has_written(self) -> bool:
        """True if the transaction has changed a row."""
        return self._connection.total_changes != self._changes_before


class QueueRows:
    """One queue within a transaction: its row, and access to its slots, leases, request keys and log."""

    #: Number of the last step after which a claim may find more jobs.
    work: int
    #: Number of the last step that removed an id.
    removal: int
    #: Size of the log in bytes.
    log_bytes: int
    #: Number of the last event that was removed from the log.
    trimmed: int
    #: Number of the last report of progress.
    reported: int

    def __init__(self, tx: Transaction, name: str) -> None:
        self.name = name
        self._tx = tx
        row = tx.execute("queue", queue=name).fetchone()
        row = row or (None, 0, 0, 0, 0, 0)
        packed, self.work, self.removal, self.log_bytes, self.trimmed, self.reported = row
        self.settings = Settings() if packed is None else _decode_settings(packed)
        self._stored = None if packed is None else self._row()
        self._is_used = self._has_more_work = self._has_removed = False

    def _row(self) -> dict[str, Any]:
        return {
            "settings": _encode(self.settings),
            "work": self.work,
            "removal": self.removal,
            "log_bytes": self.log_bytes,
            "trimmed": self.trimmed,
            "reported": self.reported,
        }

    def flush(self) -> None:
        """Write the row of the queue if it has changed. Called right before the commit."""
        if self._has_more_work:
            self.work = self._tx.draw()
        if self._has_removed:
            self.removal = self._tx.draw()
        row = self._row()
        if row != self._stored and (self._is_used or self._stored is not None):
            self.execute("save_queue", **row)

    def execute(self, name: str, **params: Any) -> sqlite3.Cursor:
        """Execute a query with this queue as its parameter `queue`."""
        return self._tx.execute(name, queue=self.name, **params)

    def scalar(self, name: str, **params: Any) -> Any:
        """Return the first column of the first row of a query about this queue, or None without rows."""
        return self._tx.scalar(name, queue=self.name, **params)

    # -- slots ---------------------------------------------------------------------------------------

    def get(self, id: str) -> Slot:
        """Return the slot of an id, or EMPTY for an unknown id. The slot's outcome may have expired."""
        body = self.scalar("slot", id=searchable(id))
        return EMPTY if body is None else self._decode_slot(id, body)

    def _decode_slot(self, id: str, body: bytes) -> Slot:
        """Return a stored slot. Raise StorageDamaged if its bytes cannot be decoded."""
        try:
            return _decode_slot(body)
        except msgspec.DecodeError as error:
            raise StorageDamaged(
                f"the record of job {id!r} in queue {self.name!r} is damaged ({error}); restore a backup, or "
                "delete its row from the table slots"
            ) from None

    def put(self, id: str, before: Slot, after: Slot) -> None:
        """Replace the slot `before` of an id by `after`. An empty `after` removes the id."""
        self._is_used = True
        job, outcome = after.current, after.outcome
        waits = job is not None and job.run is None
        # Under max_active, a run that leaves its lease may allow another claim.
        leaves = _is_leased(before.current) and not _is_leased(job)
        if waits or (leaves and self.settings.max_active is not None):
            self._has_more_work = True
        if job is None and outcome is None:
            self._has_removed = True
            self.execute("delete_slot", id=id)
        else:
            self._save(id, before, after)
        self._move_keys(before.current, job)
        if self.settings.fair:
            self._move_turns(before.current, job)

    def _save(self, id: str, before: Slot, after: Slot) -> None:
        job, outcome = after.current, after.outcome
        run = job.run if job is not None else None
        has_ended = outcome is not before.outcome or after.dropped != before.dropped or job is None
        self.execute(
            "save_slot",
            id=id,
            state=None if job is None else "w" if run is None else "h" if run.lease is None else "a",
            priority=job.data.priority if job is not None else None,
            run_at=job.run_at if job is not None else None,
            seq=job.seq if job is not None else None,
            lease=run.lease if run is not None else None,
            cancel_requested=run is not None and run.lease is not None and run.cancel_requested,
            blocked=after.successor is not None,
            outcome=outcome.kind if outcome is not None else None,
            expires_at=outcome.expires_at if outcome is not None else None,
            ending=self._tx.draw() if has_ended else None,
            body=_encode(after),
            key=job.data.key if job is not None else None,
            filed=self.settings.fair and job is not None and run is None,
            retrying=job is not None and job.is_retrying,
        )

    def _move_keys(self, before: Job | None, after: Job | None) -> None:
        """Bring filed jobs back for the keys of a job that changed.

        A key that is not closed always has its first filed job in the order of claims.
        """
        keys = {job.data.key for job in (before, after) if job is not None and job.data.key is not None}
        for key in keys:
            # A run that ends or leaves its lease makes room.
            if _is_leased(before) and not _is_leased(after) and self.scalar("is_full", key=key):
                self.open_key(key)
            elif not self.settings.fair and not self.scalar("is_closed", key=key):
                self._has_more_work |= self.execute("bring_back", key=key).rowcount > 0

    def open_key(self, key: str) -> None:
        """Mark a key as open. Without turns, its first filed job returns to the order of claims."""
        if self.settings.shares.get(key) != 0:
            self.execute("open_key", key=key)
            brings_back = not self.settings.fair and self.execute("bring_back", key=key).rowcount > 0
            self._has_more_work |= brings_back or self.settings.fair

    def _move_turns(self, before: Job | None, after: Job | None) -> None:
        """Move the turns of the keys of a job that has changed (contract 2, Turns of keys)."""
        left, entered = _waiting_key(before), _waiting_key(after)
        if left == entered:
            return
        if entered is not None and self.scalar("turn", key=entered) is None:
            self.execute("save_turn", key=entered, place=self._tx.draw(), starts=0)
        if left is None:
            return
        if not self.scalar("waits_under_key", key=left):
            self.execute("delete_turn", key=left)
        elif after is not None and after.run is not None:
            self._count_start(left)

    def _count_start(self, key: str) -> None:
        """Count a start of a key in its turn. After as many starts as its share, the key goes to the back."""
        place, starts = self.execute("turn", key=key).fetchone()
        if starts + 1 >= self.settings.shares.get(key, 1):
            place, starts = self._tx.draw(), -1
        self.execute("save_turn", key=key, place=place, starts=starts + 1)

    def mark_reported(self, id: str) -> None:
        """Wake the waits for progress of an id."""
        self._is_used = True
        self.reported = self._tx.draw()
        self.execute("save_reported", id=id, number=self.reported)

    def output(self, id: str) -> Output | None:
        """Return the output of an id, also that of an expired outcome; None if it has none."""
        body = self.scalar("output", id=searchable(id))
        return None if body is None else _decode_output(body)

    def put_output(self, id: str, output: Output | None) -> None:
        if output is None:
            self.execute("delete_output", id=id)
        else:
            self.execute("save_output", id=id, body=_encode(output))

    def change_output(self, id: str, change: Callable[[Output], Output | None]) -> None:
        """Replace the output of an id by what `change` makes of it, if it has any."""
        if (known := self.output(id)) is not None:
            self.put_output(id, change(known))

    def due(self, limit: int) -> list[Slot]:
        """Return the slots of the next `limit` jobs to claim, in the order of claims.

        If the keys take turns, return at most one.
        """
        found: list[Slot] = []
        fair = self.settings.fair
        for (priority,) in self.execute("priorities", filed=fair).fetchall():
            if len(found) >= (1 if fair else limit):
                break
            rows = self.execute(
                "next_turn" if fair else "due", priority=priority, now=self._tx.now, limit=limit - len(found)
            )
            found += [self._decode_slot(id, body) for id, body in rows]
        return found

    def listed(
        self, state: str | None, after: str, until: str | None, limit: int
    ) -> Iterator[tuple[str, Slot]]:
        """Yield the ids above `after` and up to `until` in a state (None: any), each with its slot."""
        bounds = {"after": searchable(after), "until": None if until is None else searchable(until)}
        rows = self.execute("list", state=state, **bounds, now=self._tx.now, limit=limit)
        return ((id, self._decode_slot(id, body)) for id, body in rows)

    def split(self, state: str | None, parts: int) -> list[str]:
        """Return the ids that divide the ids in a state into `parts` parts of equal size."""
        rows = self.execute("split", state=state, parts=parts, now=self._tx.now)
        return [id for (id,) in rows]

    # -- settings, leases, request keys ----------------------------------------------------------------

    def configure(self, settings: Settings) -> None:
        self._is_used = self._has_more_work = True
        self.settings = settings

    def lease(self, id: str) -> LeaseRow | None:
        """Return a lease, or None if it is unknown or has expired."""
        row = self.execute("lease", lease=searchable(id)).fetchone()
        if row is None or row[1] <= self._tx.now:
            return None
        return LeaseRow(id, row[0], row[1], bool(row[2]))

    def note_work(self) -> None:
        """Note that a claim may take more than before."""
        self._is_used = self._has_more_work = True

    def put_lease(self, lease: LeaseRow) -> None:
        self._is_used = True
        self.execute(
            "save_lease",
            lease=lease.id,
            holder=lease.holder,
            expires_at=lease.expires_at,
            dropped=lease.dropped,
        )

    def held_ids(self, lease: str, limit: int) -> list[str]:
        """Return the ids of at most `limit` jobs that are active under a lease."""
        return [id for (id,) in self.execute("held_ids", lease=searchable(lease), limit=limit)]

    def result_for_key(self, key: str) -> EnqueueResult | None:
        """Return the first result of a request_key, marked as repeated; None for an unknown key."""
        packed = self.scalar("request_key", key=key, now=self._tx.now)
        return None if packed is None else replace(_decode_result(packed), repeated=True)

    def put_key(self, key: str, result: EnqueueResult) -> None:
        """Store the result of an enqueue with a request_key, for as long as the setting request_key_age."""
        self._is_used = True
        expires_at = self._tx.now + self.settings.request_key_age
        self.execute("save_request_key", key=key, result=_encode(result), expires_at=expires_at)

    # -- the log ---------------------------------------------------------------------------------------

    def log_event(self, event: LogEvent) -> None:
        """Append an event to the queue's log, if the log level includes its kind."""
        level = self.settings.log_level
        if level == "off" or (level == "runs" and event.kind not in _ATTEMPT_KINDS):
            return
        self._is_used = True
        body = _encode(event)
        self.execute("append_event", number=self._tx.draw(), at=self._tx.now, body=body)
        self.log_bytes += len(body)
        if self.log_bytes > self.settings.log_bytes:
            self.trim_log(oldest_at=0)

    def trim_log(self, oldest_at: int) -> int:
        """Remove events older than `oldest_at` (ms), and the oldest beyond log_bytes. Return their number."""
        count = 0
        for number, at, size in self.execute("oldest_events"):
            if at >= oldest_at and self.log_bytes <= self.settings.log_bytes:
                break
            self.log_bytes -= size
            self.trimmed = number
            count += 1
        if count:
            self.execute("trim_events", through=self.trimmed)
        return count


def _waiting_key(job: Job | None) -> str | None:
    """Return the key of a waiting job, or NO_KEY; None for a job that does not wait."""
    return None if job is None or job.run is not None else job.data.key or NO_KEY


def _is_leased(job: Job | None) -> bool:
    return job is not None and job.run is not None and job.run.lease is not None


def searchable(text: str) -> str:
    """Return text for use as a query parameter.

    Text that UTF-8 cannot encode becomes "", which matches no row.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return ""
    return text
