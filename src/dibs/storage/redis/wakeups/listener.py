"""Wake-ups by publish and subscribe: one connection for all waits of a storage.

A blocking pop would need a connection for each wait, and in a cluster one for each node; a subscription
needs one in all, and a message takes no longer. A message that is lost costs one slow poll.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as TooLate

from dibs.errors import StorageError
from dibs.storage.redis.codec.jobs import section
from dibs.storage.redis.network.connections import Connections
from dibs.storage.redis.network.wire import WireConnection
from dibs.storage.sleeper import Sleeper

log: Final = logging.getLogger("dibs.storage.redis")

#: Seconds of silence after which the server is asked whether it is still there.
QUIET: Final = 15.0
#: Seconds until it must have answered.
ANSWER: Final = 5.0
#: Seconds for which nobody waits on a channel until its messages are asked for no more.
LINGER: Final = 10.0
#: How many of the latest messages about ends are remembered for a queue.
REMEMBERED: Final = 64


class Ended:
    """What a message told: which ids of a queue ended between two tokens, and how; none named means many."""

    __slots__ = ("before", "ids", "now")

    def __init__(self, raw: bytes) -> None:
        self.before, self.now = int.from_bytes(raw[:8]), int.from_bytes(raw[8:16])
        #: Each with its outcome, packed; empty where it was not told.
        self.ids: dict[str, bytes] = {}
        at = 16
        while at < len(raw):
            id, at = section(raw, at)
            self.ids[id.decode()], at = section(raw, at)

    def concerns(self, ids: Collection[str]) -> bool:
        return not self.ids or not self.ids.keys().isdisjoint(ids)


class Waiter(Sleeper):
    """One wait: the ids it is about, none for any. It is woken by what it is told since it listens."""

    def __init__(self, ids: Collection[str] = ()) -> None:
        super().__init__()
        self.ids = ids

    def hear(self, ended: Ended | None) -> None:
        if ended is None or not self.ids or ended.concerns(self.ids):
            self.wake()


class Subscription:
    """The channels of a storage, and who waits on which."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._wire: WireConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._waiters: defaultdict[str, set[Waiter]] = defaultdict(set)
        self.ends: defaultdict[str, deque[Ended]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._left: dict[str, float] = {}
        #: Those whose messages were lost, since a connection was, until they are heard again.
        self._missed: set[str] = set()
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
        if fresh and self._wire is not None:
            self._wire.send("SUBSCRIBE", *fresh)
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
                waiter.wake()

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
                    "no wake-ups from %s, polling until it is back: %s", self._connections.url, error
                )
            # Whatever was said meanwhile was missed.
            self._confirmed = {
                channel: asyncio.get_running_loop().create_future() for channel in self._waiters
            }
            self._missed = {*self._confirmed}
            self.ends.clear()
            self.latest = {}
            self.wake_all()
            pause = min(1.0, pause * 2 or 0.05)

    async def _hear(self) -> None:
        wire = await self._connections.connect()
        try:
            self._wire = wire
            wire.listen(self._take)
            if self._confirmed:
                wire.send("SUBSCRIBE", *self._confirmed)
            await _until_lost(wire)
        finally:
            self._wire = None
            await wire.aclose()

    def _take(self, message: Any) -> None:
        if not isinstance(message, list):
            return  # an answer to PING while there are no channels
        kind, channel = message[0], message[1].decode()
        if kind == b"subscribe":
            # What came late of an earlier subscription is not the newest: there was a time between them.
            self._forget(channel)
            confirmed = self._confirmed.get(channel)
            if confirmed is not None and not confirmed.done():
                confirmed.set_result(None)
            if channel in self._missed:
                # Who looked before that, with nobody to tell of what came next, looks once more.
                self._missed.discard(channel)
                for waiter in self._waiters.get(channel, ()):
                    waiter.wake()
        elif kind == b"message":
            self._tell(channel, message[2])

    def _tell(self, channel: str, raw: bytes) -> None:
        ended = Ended(raw) if channel.endswith(":ended") else None
        if ended is not None:
            self.ends[channel].append(ended)
            self.latest[channel] = ended.now
        elif channel.endswith(":work"):
            self.latest[channel] = int(raw)
        waiters = self._waiters.get(channel)
        if not waiters:
            self._decline(channel)
            return
        for waiter in waiters:
            waiter.hear(ended)

    def _decline(self, channel: str) -> None:
        """Ask for no more of what nobody has waited for of late: a message comes with every step."""
        if self._wire is not None and time.monotonic() - self._left.get(channel, 0.0) > LINGER:
            self._confirmed.pop(channel, None)
            self._left.pop(channel, None)
            self._forget(channel)
            self._wire.send("UNSUBSCRIBE", channel)

    def _forget(self, channel: str) -> None:
        self.ends.pop(channel, None)
        self.latest.pop(channel, None)

    def ended_since(self, channel: str, token: int, ids: Collection[str]) -> bool:
        """Tell whether one of the ids may have ended after a token that is not the newest."""
        told = self.ends.get(channel)
        if not told or told[0].before > token:
            return True  # not everything since then was heard: let the waiter look
        gaps = any(a.now != b.before for a, b in zip(told, list(told)[1:], strict=False))
        return gaps or any(one.now > token and one.concerns(ids) for one in told)

    def outcomes_since(self, channel: str, token: int, ids: Collection[str]) -> dict[str, bytes]:
        """Return the outcomes of these ids that were told after a token, packed, the latest of each."""
        told = [one.ids for one in self.ends.get(channel, ()) if one.now > token]
        return {id: one[id] for one in told for id in ids if one.get(id)}


async def _until_lost(wire: WireConnection) -> None:
    """Return never: raises what ended the connection, or that it does not answer any more."""
    while True:
        for silence in (QUIET, ANSWER):
            before = wire.received_count
            await asyncio.wait({wire.lost}, timeout=silence)
            if wire.lost.done():
                raise wire.lost.result()
            if wire.received_count != before:
                break
            if silence == QUIET:
                wire.send("PING")
        else:
            raise TooLate(f"no answer within {ANSWER:g} s")
