"""Wake-ups by publish and subscribe: one connection for all waits of a storage.

A blocking pop needs one connection for each wait, and in a cluster one for each node. A subscription needs
one connection for all waits, and a message takes no longer. A lost message costs the time until the next
poll.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from attrs import define, field
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dibs.errors import StorageError
from dibs.storage.redis.codec.jobs import read_sized
from dibs.storage.redis.network.connections import ConnectionPool
from dibs.storage.redis.network.wire import WireConnection
from dibs.storage.wait_loop import QueueWait

log: Final = logging.getLogger("dibs.storage.redis")

#: Seconds without a message after which the listener sends PING.
PING_AFTER: Final = 15.0
#: Seconds that the reply to PING may take.
PING_TIMEOUT: Final = 5.0
#: Seconds for which a channel without waits stays subscribed.
LINGER: Final = 10.0
#: Messages about ended ids that are kept for each queue, for waits that begin a little late.
KEPT_MESSAGES: Final = 64

Wait = QueueWait[Any]


class EndedMessage:
    """A message that ids of a queue ended, from publish_ended in storage/redis/lua/include/event_log.lua."""

    __slots__ = ("before", "ids", "now")

    def __init__(self, raw: bytes) -> None:
        #: Tokens before and after the ends.
        self.before, self.now = int.from_bytes(raw[:8]), int.from_bytes(raw[8:16])
        #: Packed outcomes by id, b"" for an outcome that was not sent. Without ids: too many to name.
        self.ids: dict[str, bytes] = {}
        at = 16
        while at < len(raw):
            id, at = read_sized(raw, at)
            self.ids[id.decode()], at = read_sized(raw, at)

    def may_concern(self, ids: Collection[str]) -> bool:
        return not self.ids or not self.ids.keys().isdisjoint(ids)


@define(eq=False)
class Subscription:
    """The subscribed channels of a storage, and the waits of each channel."""

    _connections: ConnectionPool
    _connection: WireConnection | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    #: Done once the server has confirmed the subscription of a channel.
    _confirmed: dict[str, asyncio.Future[None]] = field(factory=dict, init=False)
    _waits: defaultdict[str, set[Wait]] = field(factory=lambda: defaultdict(set), init=False)
    _ended: defaultdict[str, deque[EndedMessage]] = field(
        factory=lambda: defaultdict(lambda: deque(maxlen=KEPT_MESSAGES)), init=False
    )
    #: Monotonic time at which the last wait left a channel.
    _left_at: dict[str, float] = field(factory=dict, init=False)
    #: Channels whose messages are lost since the connection was lost, until the next confirmation.
    _missed: set[str] = field(factory=set, init=False)
    #: The newest number of each channel, where known. A lost connection replaces the dictionary.
    latest: dict[str, int] = field(factory=dict, init=False)

    async def listen(self, channels: Iterable[str], wait: Wait) -> None:
        """Subscribe to these channels; once this returns, every message that concerns `wait` wakes it."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="dibs-redis-subscription")
        new = []
        for channel in channels:
            self._waits[channel].add(wait)
            if channel not in self._confirmed:
                self._confirmed[channel] = asyncio.get_running_loop().create_future()
                new.append(channel)
        if new and self._connection is not None:
            self._connection.send("SUBSCRIBE", *new)
        unconfirmed = [one for channel in channels if not (one := self._confirmed[channel]).done()]
        if unconfirmed:
            # While the server is gone no confirmation comes, and the wait polls.
            await asyncio.wait(unconfirmed, timeout=1.0)

    def leave(self, channels: Iterable[str], wait: Wait) -> None:
        for channel in channels:
            self._waits[channel].discard(wait)
            if not self._waits[channel]:
                del self._waits[channel]
                self._left_at[channel] = time.monotonic()

    def wake_all(self) -> None:
        """Wake every wait: messages were lost, the manual clock moved, or the storage closes."""
        for waits in self._waits.values():
            for wait in waits:
                wait.wake()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self.wake_all()

    def is_confirmed(self, channels: Iterable[str]) -> bool:
        """Return whether the server sends every message on these channels."""
        return all((one := self._confirmed.get(channel)) is not None and one.done() for channel in channels)

    # -- the connection ------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause = 0.0
        while True:
            try:
                await asyncio.sleep(pause)
                await self._listen_until_lost()
            except (RedisError, StorageError, OSError, TimeoutError) as error:
                log.warning("no wake-ups from %s, polling until it is back: %s", self._connections.url, error)
            # All messages until the next confirmation are lost.
            self._confirmed = {channel: asyncio.get_running_loop().create_future() for channel in self._waits}
            self._missed = {*self._confirmed}
            self._ended.clear()
            self.latest = {}
            self.wake_all()
            pause = min(1.0, pause * 2 or 0.05)

    async def _listen_until_lost(self) -> None:
        connection = await self._connections.connect()
        try:
            self._connection = connection
            connection.listen(self._receive)
            if self._confirmed:
                connection.send("SUBSCRIBE", *self._confirmed)
            await _raise_when_lost(connection)
        finally:
            self._connection = None
            await connection.aclose()

    def _receive(self, message: Any) -> None:
        if not isinstance(message, list):
            return  # the reply to PING while no channel is subscribed
        kind, channel = message[0], message[1].decode()
        if kind == b"subscribe":
            self._receive_confirmation(channel)
        elif kind == b"message":
            self._receive_change(channel, message[2])

    def _receive_confirmation(self, channel: str) -> None:
        # Messages of an earlier subscription may have arrived late; messages between the two are missing.
        self._forget(channel)
        confirmed = self._confirmed.get(channel)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)
        if channel in self._missed:
            # A wait that looked before this confirmation got no message about later changes: it looks again.
            self._missed.discard(channel)
            for wait in self._waits.get(channel, ()):
                wait.wake()

    def _receive_change(self, channel: str, raw: bytes) -> None:
        ended = EndedMessage(raw) if channel.endswith(":ended") else None
        if ended is not None:
            self._ended[channel].append(ended)
            self.latest[channel] = ended.now
        elif channel.endswith(":work"):
            self.latest[channel] = int(raw)
        waits = self._waits.get(channel)
        if not waits:
            self._unsubscribe_unused(channel)
            return
        for wait in waits:
            if ended is None or not wait.ids or ended.may_concern(wait.ids):
                wait.wake()

    def _unsubscribe_unused(self, channel: str) -> None:
        """Unsubscribe a channel without waits after LINGER seconds: each step publishes a message to it."""
        if self._connection is not None and time.monotonic() - self._left_at.get(channel, 0.0) > LINGER:
            self._confirmed.pop(channel, None)
            self._left_at.pop(channel, None)
            self._forget(channel)
            self._connection.send("UNSUBSCRIBE", channel)

    def _forget(self, channel: str) -> None:
        self._ended.pop(channel, None)
        self.latest.pop(channel, None)

    # -- kept messages -------------------------------------------------------------------------------

    def may_have_ended(self, channel: str, token: int, ids: Collection[str]) -> bool:
        """Return whether one of the ids may have ended after an older token."""
        messages = self._ended.get(channel)
        if not messages or messages[0].before > token:
            return True  # the messages right after the token are missing: look
        gaps = any(a.now != b.before for a, b in zip(messages, list(messages)[1:], strict=False))
        return gaps or any(one.now > token and one.may_concern(ids) for one in messages)

    def outcomes_since(self, channel: str, token: int, ids: Collection[str]) -> dict[str, bytes]:
        """Return the packed outcomes of these ids in messages after a token, the latest of each id."""
        found = [one.ids for one in self._ended.get(channel, ()) if one.now > token]
        return {id: one[id] for one in found for id in ids if one.get(id)}


async def _raise_when_lost(connection: WireConnection) -> None:
    """Wait until the connection is lost or a PING is not answered, and raise the error."""
    while True:
        for seconds in (PING_AFTER, PING_TIMEOUT):
            before = connection.received_count
            await asyncio.wait({connection.lost}, timeout=seconds)
            if connection.lost.done():
                raise connection.lost.result()
            if connection.received_count != before:
                break
            if seconds == PING_AFTER:
                connection.send("PING")
        else:
            raise RedisTimeoutError(f"no reply to PING within {PING_TIMEOUT:g} s")
