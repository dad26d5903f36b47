"""Wake-ups by publish and subscribe: one connection for all waits of a storage.

A blocking pop would need a connection for each wait, and in a cluster one for each node; a subscription
needs one in all, and a message takes no longer. A message that is lost costs one slow poll.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from dibs.errors import StorageError
from dibs.storage.redis.codec import section
from dibs.storage.redis.connections import Connections

log: Final = logging.getLogger("dibs.storage.redis")

#: Seconds of silence after which the server is asked whether it is still there.
QUIET: Final = 15.0
#: Seconds until it must have answered.
ANSWER: Final = 5.0
#: Seconds for which nobody follows a log until its messages are asked for no more.
LINGER: Final = 10.0
#: How many of the latest messages about ends are remembered for a queue.
REMEMBERED: Final = 64


class Ended:
    """What a message told: which ids of a queue ended between two tokens; none named means many."""

    __slots__ = ("before", "ids", "now")

    def __init__(self, raw: bytes) -> None:
        self.before, self.now = int.from_bytes(raw[:8]), int.from_bytes(raw[8:16])
        at, ids = 16, set()
        while at < len(raw):
            id, at = section(raw, at)
            ids.add(id.decode())
        self.ids = ids

    def concerns(self, ids: Collection[str]) -> bool:
        return not self.ids or not self.ids.isdisjoint(ids)


class Waiter:
    """One wait: the ids it is about, none for any, and whether it was told something since it listens."""

    def __init__(self, ids: Collection[str] = ()) -> None:
        self.ids = ids
        self.told = asyncio.Event()

    def hear(self, ended: Ended | None) -> None:
        if ended is None or not self.ids or ended.concerns(self.ids):
            self.told.set()


class Subscription:
    """The channels of a storage, and who waits on which."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._waiters: defaultdict[str, set[Waiter]] = defaultdict(set)
        self.ends: defaultdict[str, deque[Ended]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._left: dict[str, float] = {}
        #: The newest token of each channel, where known; another dictionary once something was missed.
        self.latest: dict[str, int] = {}

    async def listen(self, channels: Iterable[str], waiter: Waiter) -> None:
        """Let the waiter hear every message on these channels, from when this returns."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="dibs-redis-subscription")
        fresh = []
        for channel in channels:
            self._waiters[channel].add(waiter)
            if channel not in self._confirmed:
                self._confirmed[channel] = asyncio.get_running_loop().create_future()
                fresh.append(channel)
        if fresh and self._connection is not None:
            await self._subscribe(self._connection, fresh)
        unconfirmed = [one for channel in channels if not (one := self._confirmed[channel]).done()]
        if unconfirmed:
            # Without a confirmation, because the server is gone, the slow poll serves.
            await asyncio.wait(unconfirmed, timeout=1.0)

    def leave(self, channels: Iterable[str], waiter: Waiter) -> None:
        for channel in channels:
            self._waiters[channel].discard(waiter)
            if not self._waiters[channel]:
                del self._waiters[channel]
                self._left[channel] = time.monotonic()

    def wake_all(self) -> None:
        """Wake every waiter: something was missed, or time was moved by hand."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.told.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self.wake_all()

    def hears(self, channels: Iterable[str]) -> bool:
        """Tell whether every message on these channels is heard."""
        return all((one := self._confirmed.get(channel)) is not None and one.done() for channel in channels)

    # -- the connection ------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = 0.0
        while True:
            try:
                await asyncio.sleep(pause)
                await self._hear()
            except (RedisError, StorageError, OSError, TimeoutError) as error:
                log.warning(
                    "no wake-ups from %s, polling until it is back: %s", self._connections.place, error
                )
            # Whatever was said meanwhile was missed.
            self._confirmed = {
                channel: asyncio.get_running_loop().create_future() for channel in self._waiters
            }
            self.ends.clear()
            self.latest = {}
            self.wake_all()
            pause = min(1.0, pause * 2 or 0.05)

    async def _hear(self) -> None:
        connection = await self._connections.connect()
        try:
            self._connection = connection
            if self._confirmed:
                await self._subscribe(connection, self._confirmed)
            while True:
                message = await self._next(connection)
                self._take(message)
                await self._decline(connection, message)
        finally:
            self._connection = None
            await connection.disconnect(nowait=True)

    async def _subscribe(self, connection: AbstractConnection, channels: Iterable[str]) -> None:
        await connection.send_command("SUBSCRIBE", *channels, check_health=False)

    async def _decline(self, connection: AbstractConnection, message: Any) -> None:
        """Ask for no more of a log that nobody follows any longer: a message comes with every step."""
        channel = message[1].decode()
        if message[0] != b"message" or not channel.endswith(":told") or channel in self._waiters:
            return
        if time.monotonic() - self._left.get(channel, 0.0) > LINGER:
            self._confirmed.pop(channel, None)
            self._left.pop(channel, None)
            await connection.send_command("UNSUBSCRIBE", channel, check_health=False)

    async def _next(self, connection: AbstractConnection) -> Any:
        try:
            async with asyncio.timeout(QUIET):
                return await connection.read_response(timeout=math.inf, disconnect_on_error=False)
        except TimeoutError:
            await connection.send_command("PING", check_health=False)
        async with asyncio.timeout(ANSWER):
            return await connection.read_response(timeout=math.inf)

    def _take(self, message: Any) -> None:
        kind, channel = message[0], message[1].decode()
        if kind == b"subscribe":
            confirmed = self._confirmed.get(channel)
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)
        elif kind == b"message":
            ended = Ended(message[2]) if channel.endswith(":ended") else None
            if ended is not None:
                self.ends[channel].append(ended)
                self.latest[channel] = ended.now
            elif channel.endswith(":work"):
                self.latest[channel] = int(message[2])
            for waiter in self._waiters.get(channel, ()):
                waiter.hear(ended)

    def ended_since(self, channel: str, token: int, ids: Collection[str]) -> bool:
        """Tell whether one of the ids may have ended after a token that is not the newest."""
        told = self.ends.get(channel)
        if not told or told[0].before > token:
            return True  # not everything since then was heard: let the waiter look
        gaps = any(a.now != b.before for a, b in zip(told, list(told)[1:], strict=False))
        return gaps or any(one.now > token and one.concerns(ids) for one in told)
