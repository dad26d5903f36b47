"""The verb `wait` on Postgres: how a wait learns the state of its queues, and when it ends.

A wait begins without a query while notifications arrive and the result of the last claim is known. So an idle
worker, and a caller that waits for a result, send no query until a notification arrives or the next poll.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from attrs import define, field

from dibs.model.results import ClaimResult, WaitResult
from dibs.storage.postgres.network.server import PostgresDatabase
from dibs.storage.postgres.wakeups.listener import NotificationListener, Notifications
from dibs.storage.protocol import Watch
from dibs.storage.wait_loop import QueueWait

#: Seconds for which the server surely notifies after a wait has read a queue. (The server does so for at
#: least 30 s.)
NOTIFIED_SECONDS: Final = 25.0
#: Seconds until the next read of a log with entries that are not yet visible, because a transaction is open.
HIDDEN_SECONDS: Final = 0.02


class WatchRow(NamedTuple):
    """The state of one queue, a row of watch() in storage/postgres/functions/notify.sql.

    Times are in ms.
    """

    name: str
    number: int = 0
    now: int = 0
    #: True if a claim would find a job.
    due: bool = False
    next_due: int | None = None
    ends_at: int | None = None
    hidden: bool = False
    #: True if the server sent no notifications before this read, so that a change may have been missed.
    unheard: bool = False


class WaitState(NamedTuple):
    """The states of all queues of a wait, and the token of each."""

    rows: Sequence[WatchRow]
    tokens: Mapping[str, str]


class NoDueJob(NamedTuple):
    """The state of a queue in which a claim or a read has left no due job."""

    token: str
    #: Seconds until the next scheduled job, counted from `at`.
    due_in: float | None
    #: Monotonic time of the claim or read.
    at: float

    def to_row(self, queue: str) -> WatchRow:
        """Return the state as a row of watch(). Its times count from now, in ms."""
        if self.due_in is None:
            return WatchRow(queue)
        return WatchRow(queue, next_due=max(0, round((self.at + self.due_in - time.monotonic()) * 1000)))


@define(eq=False)
class PostgresWaits:
    """The state that all waits of one open storage share: notifications, and results of claims and reads."""

    server: PostgresDatabase
    #: Seconds between two reads of a queue without notifications.
    poll: float
    manual: bool = field(kw_only=True)
    notifications: Notifications = field(factory=Notifications, init=False)
    listener: NotificationListener = field(init=False)
    #: Monotonic time at which a queue was last read, by watch and queue.
    _read_at: dict[tuple[Watch, str], float] = field(factory=dict, init=False)
    _no_due_job: dict[str, NoDueJob] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        server = self.server
        self.listener = NotificationListener(
            self.notifications, server.queries.channel, server.connect, server.url
        )

    async def close(self) -> None:
        """Stop the listener and wake every wait. The waits then raise NotRunning."""
        await self.listener.stop()
        self.notifications.wake_all()

    def token(self, queue: str) -> str:
        """Return the token for a claim that begins now; "" while the server may send no notifications."""
        notified = self.seconds_notified("work", [queue]) > 0
        return self.notifications.token("work", queue) if notified else ""

    def note_claim(self, queue: str, claim: ClaimResult, limit: int) -> None:
        """Store the state of a queue after a claim. A claim that reached its limit leaves it unknown."""
        if claim.lost or len(claim.jobs) >= limit:
            self._no_due_job.pop(queue, None)
            return
        due_in = None if claim.next_due is None else (claim.next_due - claim.now) / 1000
        self._no_due_job[queue] = NoDueJob(claim.token, due_in, time.monotonic())

    def known_row(self, queue: str, token: str | None) -> WatchRow | None:
        """Return the state of a queue if a claim or read made it known, else None.

        It is known while the server sends notifications about the queue, if `token` is that of the claim or
        read, or if no notification has arrived since then.
        """
        known = self._no_due_job.get(queue)
        if known is None or not known.token or self.seconds_notified("work", [queue]) <= 0:
            return None
        if known.token != token and known.token != self.notifications.token("work", queue):
            return None
        return known.to_row(queue)

    def note_read(self, watch: Watch, row: WatchRow, token: str) -> None:
        """Store a row that watch() returned. `token` is the token of the queue from before the read."""
        self.notifications.note_queue(row.number, row.name)
        self._read_at[watch, row.name] = time.monotonic()
        if watch != "work":
            return
        if row.due:
            self._no_due_job.pop(row.name, None)
            return
        due_in = None if row.next_due is None else (row.next_due - row.now) / 1000
        self._no_due_job[row.name] = NoDueJob(token, due_in, time.monotonic())

    def seconds_notified(self, watch: Watch, queues: Iterable[str]) -> float:
        """Return the seconds for which the server will still send notifications about all of these queues.

        At 0 or less, it may send none.
        """
        now = time.monotonic()
        looked_at = min((self._read_at.get((watch, queue), -inf) for queue in queues), default=now)
        return looked_at + NOTIFIED_SECONDS - now

    async def wait(
        self,
        queues: Sequence[str],
        watch: Watch,
        ids: Collection[str],
        since: Mapping[str, str],
        timeout: float | None,
    ) -> WaitResult:
        return await PostgresWait(self, queues, watch, ids, since).run(timeout)


class PostgresWait(QueueWait[WaitState]):
    """One call of `wait` on Postgres."""

    def __init__(
        self,
        waits: PostgresWaits,
        queues: Sequence[str],
        watch: Watch,
        ids: Collection[str],
        since: Mapping[str, str],
    ) -> None:
        super().__init__(queues, watch, ids, since)
        self._waits, self._notifications = waits, waits.notifications
        #: The states that are known before the first read, which then leaves these queues out.
        self._known: Sequence[WatchRow] = ()

    async def subscribe(self) -> bool:
        was_listening = await self._waits.listener.start()
        self._notifications.add(self)
        return was_listening

    def unsubscribe(self) -> None:
        self._notifications.remove(self)

    def check_open(self) -> None:
        self._waits.server.check_open()

    def ends_on_message(self) -> bool:
        return True

    def known_state(self) -> WaitState | None:
        waits = self._waits
        # A notification that has not arrived yet wakes the wait later.
        if waits.manual or self.watch == "events":
            return None
        if self.watch in ("ids", "progress"):
            notified = waits.seconds_notified(self.watch, self.queues) > 0
            return self._state([WatchRow(name) for name in self.queues]) if notified else None
        rows = (waits.known_row(name, self.since.get(name)) for name in self.queues)
        known = [row for row in rows if row is not None]
        if len(known) == len(self.queues):
            return self._state(known)
        self._known = known
        return None

    async def read_state(self) -> WaitState:
        known, self._known = self._known, ()
        names = {row.name for row in known}
        queues = [name for name in self.queues if name not in names]
        return self._state([*known, *await self._read_rows(queues)])

    async def _read_rows(self, queues: Sequence[str]) -> Sequence[WatchRow]:
        server = self._waits.server
        tokens = {name: self._notifications.token(self.watch, name) for name in queues}
        params = {"queues": queues, "kind": self.watch, "now": 0 if self._waits.manual else None}
        rows = [WatchRow(*row) for row in await server.fetch(server.queries["watch"], params, writes=False)]
        for row in rows:
            self._waits.note_read(self.watch, row, tokens[row.name])
        return rows

    def _state(self, rows: Sequence[WatchRow]) -> WaitState:
        if self.watch == "events":
            ends = {row.name: _entry_offset(row.ends_at) for row in rows}
            return WaitState(rows, {name: ends.get(name, "") for name in self.queues})
        return WaitState(rows, {name: self._notifications.token(self.watch, name) for name in self.queues})

    def has_changed(self, state: WaitState, *, was_woken: bool) -> bool:
        return any(self._queue_changed(row) for row in state.rows)

    def _queue_changed(self, row: WatchRow) -> bool:
        since = self.since.get(row.name)
        if self.watch == "events":
            return since is not None and not since.startswith(_entry_offset(row.ends_at))
        if since is not None and self._notifications.may_have_changed(self, row.name, since):
            return True
        if row.unheard:
            self.note_ended(None)
            self.note_reported(None)
        return row.due if self.watch == "work" else row.unheard

    def store_tokens(self, state: WaitState) -> None:
        """Compare a log with its state at the first read if the caller passed no token for it.

        For other waits, keep comparing with the tokens of the caller.
        """
        if self.watch == "events":
            self.since = {**state.tokens, **self.since}

    def tokens(self, state: WaitState) -> Mapping[str, str]:
        if self.watch == "events":
            return state.tokens
        # The notification that ended the wait counts, so that the caller knows which queue has changed. The
        # result has the ids of all notifications so far, so the next wait need not report them.
        return {name: self._notifications.token(self.watch, name) for name in self.queues}

    def seconds_until_due(self, state: WaitState) -> float | None:
        if self._waits.manual:
            return None
        times = [row.next_due - row.now for row in state.rows if row.next_due is not None]
        return max(0.0, min(times) / 1000) if times else None

    def seconds_until_poll(self, state: WaitState) -> float:
        # A queue that does not exist has no row, and was never read.
        notified = self._waits.seconds_notified(self.watch, (row.name for row in state.rows))
        seconds = min(self._waits.poll, max(0.0, notified))
        return min(seconds, HIDDEN_SECONDS) if any(row.hidden for row in state.rows) else seconds


def _entry_offset(ends_at: int | None) -> str:
    """Return the start of the offset of the last event in a log: the number of its entry in hexadecimal."""
    return "" if ends_at is None else f"{ends_at:016x}"
