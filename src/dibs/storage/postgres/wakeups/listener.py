"""Wake-ups of waits by the notifications of Postgres (LISTEN and NOTIFY), on a separate connection.

The listener reconnects if its connection is lost. A pooler in transaction mode delivers no notifications. The
listener detects this with an echo, a notification that it sends to itself. Waits then find changes only by
polling.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
from attrs import define, field
from psycopg import sql

from dibs.storage.postgres.network.connections import PooledConnection
from dibs.storage.protocol import Watch
from dibs.storage.wait_loop import QueueWait

log: Final = logging.getLogger("dibs.storage.postgres")

Wait = QueueWait[Any]

#: Latest notifications about ids that are kept for each queue, for waits that begin after the end of a run or
#: after a report.
KEPT_NOTIFICATIONS: Final = 64
#: Seconds that an echo may take before notifications count as undelivered.
ECHO_SECONDS: Final = 2.0
#: Seconds without a notification after which the listener sends an echo.
QUIET_SECONDS: Final = 30.0
#: The most sessions of a pooler on which the listener runs UNLISTEN.
MAX_SESSIONS: Final = 100
#: The most seconds that these UNLISTENs may take.
UNLISTEN_SECONDS: Final = 10.0
#: Seconds until the listener connects again: the first pause, doubled each time up to the longest.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0

#: The letters of notifications that name no ids, and the waits that they wake.
_LETTERS: Final[dict[str, Watch]] = {"w": "work", "e": "events"}


class IdNotification(NamedTuple):
    """A notification about ids of one queue, which have ended or reported progress."""

    #: The count of the notifications of its watch and queue, with this one.
    number: int
    #: None if the ids were too many to send.
    ids: frozenset[str] | None
    reported: bool


@define(eq=False)
class Notifications:
    """The number of notifications about each queue so far, and the pending waits that they wake."""

    #: Random text in each token of this object. The counts of another process, or of a storage that was
    #: opened earlier, cannot be compared, so a token with another era is ignored.
    _era: str = field(factory=lambda: secrets.token_hex(4), init=False)
    _counts: defaultdict[tuple[Watch, str], int] = field(factory=lambda: defaultdict(int), init=False)
    #: For each watch by id (ids, progress) and queue, its latest notifications.
    _about_ids: defaultdict[tuple[Watch, str], deque[IdNotification]] = field(
        factory=lambda: defaultdict(lambda: deque(maxlen=KEPT_NOTIFICATIONS)), init=False
    )
    _names: dict[int, str] = field(factory=dict, init=False)
    waits: set[Wait] = field(factory=set, init=False)

    def note_queue(self, number: int, name: str) -> None:
        """Store the name of a queue. Notifications name a queue by its number."""
        self._names[number] = name

    def token(self, watch: Watch, queue: str) -> str:
        """Return the token of a queue, which changes with each notification about the queue."""
        return f"{self._era}.{self._counts[watch, queue]}"

    def may_have_changed(self, wait: Wait, queue: str, token: str) -> bool:
        """Return whether a notification after this token may concern the wait.

        A wait for ids gets the ids that have ended, and a wait for progress those that have reported.
        """
        era, _, count = token.partition(".")
        if era != self._era or not count.isdecimal():
            return False
        now = self._counts[wait.watch, queue]
        if wait.watch not in ("ids", "progress"):
            return now > int(count)
        later = [one for one in self._about_ids[wait.watch, queue] if one.number > int(count)]
        concerned = [_note_ids(wait, one) for one in later]
        if len(later) < now - int(count):
            # Some notifications are lost or no longer kept.
            _note_unknown(wait)
            return True
        return any(concerned)

    def add(self, wait: Wait) -> None:
        self.waits.add(wait)

    def remove(self, wait: Wait) -> None:
        self.waits.discard(wait)

    def receive(self, payload: str) -> None:
        """Count a notification, and wake the waits that it concerns.

        `payload` has the number of the queue, letters, and ids if they fit, as in `7 wi ["a","b"]`.
        The letters are w for work, e for events, i for ids that have ended, and p for an id that has reported
        progress. Any role may notify the channel: other payloads are ignored, and a wait that is woken reads
        the state of its queues or ids.
        """
        number, letters, ids = (*payload.split(" ", 2), "", "")[:3]
        try:
            name = self._names.get(int(number))
            named = frozenset(msgspec.json.decode(ids, type=list[str])) if ids else None
        except ValueError:
            return
        if name is None:
            self.wake_all()
            return
        for letter in letters:
            if letter in _LETTERS:
                self._wake(_LETTERS[letter], name)
            elif letter in "ip":
                self._wake_by_id(name, named, reported=letter == "p")

    def _wake(self, watch: Watch, queue: str) -> None:
        self._counts[watch, queue] += 1
        for wait in self.waits:
            if wait.watch == watch and queue in wait.queues:
                wait.wake()

    def _wake_by_id(self, queue: str, ids: frozenset[str] | None, *, reported: bool) -> None:
        """Count a notification about ids, and wake the waits that it concerns.

        An end concerns waits for ids and for progress; a report concerns waits for progress.
        """
        watches: tuple[Watch, ...] = ("progress",) if reported else ("ids", "progress")
        for watch in watches:
            self._counts[watch, queue] += 1
            about = IdNotification(self._counts[watch, queue], ids, reported)
            self._about_ids[watch, queue].append(about)
            for wait in self.waits:
                if wait.watch == watch and queue in wait.queues and _note_ids(wait, about):
                    wait.wake()

    def wake_all(self) -> None:
        """Wake every wait and change every token. Called if notifications may be lost, and on close."""
        for key in self._counts:
            self._counts[key] += 1
        for latest in self._about_ids.values():
            latest.clear()
        for wait in self.waits:
            _note_unknown(wait)
            wait.wake()


def _note_unknown(wait: Wait) -> None:
    """Report to a wait that some of its ids may have ended or reported, and that it is unknown which ones."""
    wait.note_ended(None)
    wait.note_reported(None)


def _note_ids(wait: Wait, about: IdNotification) -> bool:
    """Report the ids of a notification to a wait for ids or progress. Return whether any concern it.

    A notification without ids may concern each wait. A wait for progress without ids is only concerned by
    reports.
    """
    if not wait.ids and not about.reported:
        return False
    if about.ids is None:
        _note_unknown(wait)
        return True
    concerned = about.ids & wait.ids if wait.ids else about.ids
    if about.reported:
        wait.note_reported(concerned)
    else:
        wait.note_ended(concerned)
    return bool(concerned)


@define(eq=False)
class NotificationListener:
    """The task that receives notifications, from the first wait until the storage closes."""

    _notifications: Notifications
    _channel: str
    _connect: Callable[[], Awaitable[PooledConnection]]
    #: The URL of the server without secrets, for log messages.
    _url: str
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    #: Set once the first attempt to listen has succeeded or failed.
    _ready: asyncio.Event = field(factory=asyncio.Event, init=False)
    #: True after a warning about missing notifications, until they arrive.
    _warned: bool = field(default=False, init=False)

    async def start(self) -> bool:
        """Start the task unless it runs. Return once it listens, or after its first attempt has failed.

        Return whether an earlier call had completed its start, so that this call did not have to wait.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_listening(), name="dibs-listen")
        if self._ready.is_set():
            return True
        await self._ready.wait()
        return False

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _keep_listening(self) -> None:
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    await self._listen()
                    pause = FIRST_PAUSE
                except Exception as error:  # noqa: BLE001 - waits poll until then, whatever the reason is
                    self._warn_once(error)
                self._ready.set()
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            self._ready.set()

    def _warn_once(self, reason: BaseException | str) -> None:
        """Warn that notifications do not arrive. Repeat the warning only after they arrived again."""
        if not self._warned:
            self._warned = True
            log.warning("%s: no wake-ups, polling until they are back: %s", self._url, reason)

    async def _listen(self) -> None:
        """Receive notifications until the connection is lost or an echo does not arrive."""
        connection = await self._connect()
        async with connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            heard = False
            while await self._echo_arrives(connection):
                heard = True
                if self._warned:
                    self._warned = False
                    log.warning("%s: wake-ups are back", self._url)
                if not self._ready.is_set():
                    self._ready.set()
                # Notifications before the LISTEN were lost, so every wait must read its queues again.
                self._notifications.wake_all()
                while await self._receive(connection, QUIET_SECONDS):
                    pass
            # Let new waits begin now, before the UNLISTEN.
            self._ready.set()
            if not heard:
                self._warn_once("notifications do not arrive (a pooler in transaction or statement mode?)")
                await self._unlisten(connection)
                await asyncio.sleep(QUIET_SECONDS)
            else:
                self._warn_once("the connection for notifications no longer answers")
                # Close without a rollback, whose reply would never arrive on a connection that was cut.
                connection.pgconn.finish()

    async def _unlisten(self, connection: PooledConnection) -> None:
        """Stop listening behind a pooler, which may run each statement in another session.

        Repeat UNLISTEN until it runs in the session that listens, for at most MAX_SESSIONS times and
        UNLISTEN_SECONDS. Close the connection if the pooler does not answer within them.
        """
        connection.finish_when_cancelled = True
        try:
            async with asyncio.timeout(UNLISTEN_SECONDS):
                await self._unlisten_sessions(connection)
        except TimeoutError:
            connection.pgconn.finish()

    async def _unlisten_sessions(self, connection: PooledConnection) -> None:
        channel = sql.Identifier(self._channel)
        query = sql.SQL(
            "SELECT count(*) FROM pg_listening_channels() one (name) WHERE name = {}; UNLISTEN {}"
        )
        for _ in range(MAX_SESSIONS):
            cursor = await connection.execute(query.format(sql.Literal(self._channel), channel))
            if await cursor.fetchone() != (0,):
                return

    async def _receive(self, connection: PooledConnection, seconds: float) -> bool:
        """Wait for notifications for at most `seconds`, and handle them. Return whether any arrived."""
        arrived = False
        async for notice in connection.notifies(timeout=seconds, stop_after=1):
            arrived = True
            if not notice.payload.startswith("echo"):
                self._notifications.receive(notice.payload)
        return arrived

    async def _echo_arrives(self, connection: PooledConnection) -> bool:
        """Send a notification on a second connection. Return whether it arrives within ECHO_SECONDS."""
        echo = f"echo {secrets.token_hex(4)}"
        sender = await self._connect()
        async with sender:
            await sender.execute("SELECT pg_notify(%s, %s)", [self._channel, echo])
        async for notice in connection.notifies(timeout=ECHO_SECONDS):
            if notice.payload == echo:
                return True
            if not notice.payload.startswith("echo"):
                self._notifications.receive(notice.payload)
        return False
