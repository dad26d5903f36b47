"""Hints by LISTEN, on a connection of their own; losing every one of them costs a poll, nothing else.

A listener that dies is noticed and restored. Behind a pooler that hands sessions round, notifications go
nowhere: an echo of our own tells, and then only the poll is left.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import psycopg
from psycopg import AsyncConnection, sql

from dibs.errors import StorageError
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper

log: Final = logging.getLogger("dibs.storage.postgres")

Connection = AsyncConnection[Any]

#: How many of the latest ends are remembered, for a wait that begins a little late.
REMEMBERED: Final = 64
#: How long an echo may take before a connection counts as deaf, and how often a quiet one is asked, s.
ECHO_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 30.0
#: How many sessions of a pooler are asked whether it is they who listen.
SESSIONS: Final = 100
#: How long a restored listener waits before it tries again: doubled each time, up to the second.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0

_LETTERS: Final[dict[str, Watch]] = {"w": "work", "e": "events", "i": "ids"}


class Waiter(Sleeper):
    """One wait: what it watches."""

    def __init__(self, watch: Watch, queues: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__()
        self.watch = watch
        self.queues = queues
        self.ids = frozenset(ids)


class Bell:
    """What was rung so far, and who waits for it."""

    def __init__(self) -> None:
        #: A token of another process, or of this one before it closed, says nothing here.
        self._era = secrets.token_hex(4)
        self._rung: defaultdict[tuple[Watch, str], int] = defaultdict(int)
        self._ends: defaultdict[str, deque[tuple[int, frozenset[str] | None]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )
        self._names: dict[int, str] = {}
        self._waiters: set[Waiter] = set()

    def learn(self, number: int, name: str) -> None:
        """Take note of which queue a number in a notification stands for."""
        self._names[number] = name

    def token(self, watch: Watch, queue: str) -> str:
        """Return where a queue stands for those who watch this."""
        return f"{self._era}.{self._rung[watch, queue]}"

    def moved(self, waiter: Waiter, queue: str, token: str) -> bool:
        """Tell whether something was rung that the holder of the token has not heard."""
        era, _, count = token.partition(".")
        if era != self._era or not count.isdecimal():
            return False
        now = self._rung[waiter.watch, queue]
        if waiter.watch != "ids" or now - int(count) > REMEMBERED:
            return now > int(count)
        later = [ids for number, ids in self._ends[queue] if number > int(count)]
        return any(ids is None or not ids.isdisjoint(waiter.ids) for ids in later)

    def join(self, waiter: Waiter) -> None:
        self._waiters.add(waiter)

    def leave(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def ring(self, payload: str) -> None:
        """Take a notification: the queue's number, what happened, and the ids that ended if they fit."""
        number, kinds, ids = (*payload.split(" ", 2), "", "")[:3]
        name = self._names.get(int(number))
        if name is None:
            self.ring_all()
            return
        named = frozenset(msgspec.json.decode(ids, type=list[str])) if ids else None
        for letter in kinds:
            self._one(_LETTERS[letter], name, named)

    def _one(self, watch: Watch, queue: str, ids: frozenset[str] | None) -> None:
        self._rung[watch, queue] += 1
        if watch == "ids":
            self._ends[queue].append((self._rung[watch, queue], ids))
        for waiter in self._waiters:
            concerned = waiter.watch == watch and queue in waiter.queues
            if concerned and (watch != "ids" or ids is None or not ids.isdisjoint(waiter.ids)):
                waiter.wake()

    def ring_all(self) -> None:
        """End every wait: something may have gone unheard, or the storage closes."""
        for key in self._rung:
            self._rung[key] += 1
        for ends in self._ends.values():
            ends.clear()
        for waiter in self._waiters:
            waiter.wake()


class Listener:
    """A task that listens and rings, from the first wait to the end of the storage."""

    def __init__(
        self, bell: Bell, channel: str, connect: Callable[[], Awaitable[Connection]], place: str
    ) -> None:
        self._bell = bell
        self._channel = channel
        self._connect = connect
        self._place = place
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._quiet = False

    async def start(self) -> None:
        """Begin to listen, if nobody does yet, and wait until it is so, or turned out not to work."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="dibs-listen")
        if not self._heard.is_set():
            await self._heard.wait()

    async def stop(self) -> None:
        """Stop listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    await self._listen()
                    pause = FIRST_PAUSE
                except (psycopg.Error, StorageError, OSError) as error:
                    self._tell(error)
                self._heard.set()
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            self._heard.set()

    def _tell(self, why: BaseException | str) -> None:
        """Say once that hints are gone, until they are back."""
        if not self._quiet:
            self._quiet = True
            log.warning("%s: no wake-ups, polling until they are back: %s", self._place, why)

    async def _listen(self) -> None:
        """Listen until the connection dies or turns out deaf."""
        connection = await self._connect()
        async with connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            while await self._echo(connection):
                if self._quiet:
                    self._quiet = False
                    log.warning("%s: wake-ups are back", self._place)
                # What happened while nobody listened went unheard.
                if not self._heard.is_set():
                    self._heard.set()
                self._bell.ring_all()
                while await self._take(connection, QUIET_SECONDS):
                    pass
            self._tell("notifications do not come through (a pooler in transaction mode?)")
            # Whoever is about to wait need not wait for that.
            self._heard.set()
            await self._unlisten(connection)
            await asyncio.sleep(QUIET_SECONDS)

    async def _unlisten(self, connection: Connection) -> None:
        """Let no session of a pooler go on listening for us: ask whichever comes, until it was the one."""
        channel = sql.Identifier(self._channel)
        asked = sql.SQL(
            "SELECT count(*) FROM pg_listening_channels() one (name) WHERE name = {}; UNLISTEN {}"
        )
        for _ in range(SESSIONS):
            cursor = await connection.execute(asked.format(sql.Literal(self._channel), channel))
            if await cursor.fetchone() != (0,):
                return

    async def _take(self, connection: Connection, seconds: float) -> bool:
        """Ring what comes within some time; tell whether anything came."""
        came = False
        async for notice in connection.notifies(timeout=seconds, stop_after=1):
            came = True
            if not notice.payload.startswith("echo"):
                self._bell.ring(notice.payload)
        return came

    async def _echo(self, connection: Connection) -> bool:
        """Tell whether a notification of our own comes back, asked for on a connection of its own."""
        said = f"echo {secrets.token_hex(4)}"
        other = await self._connect()
        async with other:
            await other.execute("SELECT pg_notify(%s, %s)", [self._channel, said])
        async for notice in connection.notifies(timeout=ECHO_SECONDS):
            if notice.payload == said:
                return True
            if not notice.payload.startswith("echo"):
                self._bell.ring(notice.payload)
        return False


def earliest(times: Iterable[float | None]) -> float | None:
    """Return the least of some times, None being no limit."""
    return min((one for one in times if one is not None), default=None)
