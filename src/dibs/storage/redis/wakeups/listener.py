"""Wake-ups of waits by Redis publish and subscribe, with one connection for all waits of a storage.

Why not a blocking pop: it needs one connection for each wait, and in a cluster one for each node. A message
of a subscription arrives just as fast. If a message is lost, its waits read their queues at the next poll.

Everybody who may publish on a channel can send a message. So a message about ids begins with a proof by the
secret of the queue, which only those know who may read its keys. Any other message is a hint without content.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from hashlib import sha1
from hmac import compare_digest
from typing import Any, Final

from attrs import define, field
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dibs.errors import StorageError
from dibs.model.error_text import summarize_exception
from dibs.storage.abilities import OnOutcome, StopWatching
from dibs.storage.redis.codec.data import read_sized
from dibs.storage.redis.network.servers import Servers
from dibs.storage.redis.network.wire import WireConnection
from dibs.storage.redis.wakeups.end_watches import StoredEndWatches
from dibs.storage.wait_loop import QueueWait

log: Final = logging.getLogger("dibs.storage.redis")

#: Seconds without a message after which the listener sends PING.
PING_AFTER: Final = 15.0
#: Seconds that the reply to PING may take.
PING_TIMEOUT: Final = 5.0
#: Seconds for which a channel without waits stays subscribed, because the next wait often follows soon.
LINGER: Final = 10.0
#: Latest messages about ended ids that are kept for each queue, for waits that begin after the end of a run.
KEPT_MESSAGES: Final = 64
#: Characters of the proof with which a message about ids begins.
PROOF: Final = 40
#: The most bytes of such a message. One that names 400 ids of 512 bytes has 205 KB.
MAX_MESSAGE: Final = 250_000
#: The most digits of the number in a message on the channel `work`.
MAX_DIGITS: Final = 20
#: Stands before the ids of a message that has no outcomes; NUL separates the ids.
NO_OUTCOMES: Final = b"\xff" * 4


class Wait(QueueWait[Any], ABC):
    """A wait that messages wake."""

    @abstractmethod
    def note_named(self, channel: str, ids: Collection[str] | None) -> None:
        """Add the watched ids that a message of this channel named. None: it is unknown which ones."""

    @abstractmethod
    def is_news(self, channel: str, number: int) -> bool:
        """Return whether the number in a message about work is above that in the token of the wait."""


class NamingMessage:
    """A message with the ids whose runs ended, or that reported progress, in one step of a queue.

    publish_ended in storage/redis/lua/include/event_log.lua sends it, and storage/redis/lua/report.lua. `raw`
    is the message without its proof.
    """

    __slots__ = ("before", "ids", "now")

    def __init__(self, raw: bytes) -> None:
        #: Numbers of the channel (in the tokens of waits) before and after this step.
        self.before, self.now = int.from_bytes(raw[:8]), int.from_bytes(raw[8:16])
        #: Packed outcomes by id, b"" for an outcome that was not sent. Empty if too many ids ended to name
        #: them.
        self.ids: dict[str, bytes] = {}
        at = 16
        if raw[at : at + 4] == NO_OUTCOMES:
            self.ids = dict.fromkeys(raw[at + 4 :].decode().split("\0"), b"")
            return
        while at < len(raw):
            id, at = read_sized(raw, at)
            self.ids[id.decode()], at = read_sized(raw, at)

    def may_concern(self, ids: Collection[str]) -> bool:
        return not self.ids or not self.ids.keys().isdisjoint(ids)

    def among(self, ids: AbstractSet[str]) -> AbstractSet[str] | None:
        """Return those of `ids` (all, if it is empty) that are in the message; None for one without ids."""
        if not self.ids:
            return None
        return self.ids.keys() & ids if ids else self.ids.keys()


@define(eq=False)
class Subscription:
    """The connection that subscribes to the channels of queues, and the waits that its messages wake."""

    _servers: Servers
    _connection: WireConnection | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    #: For each channel, a future that is done once the server has confirmed its subscription.
    _confirmed: dict[str, asyncio.Future[None]] = field(factory=dict, init=False)
    _waits: defaultdict[str, set[Wait]] = field(factory=lambda: defaultdict(set), init=False)
    _naming: defaultdict[str, deque[NamingMessage]] = field(
        factory=lambda: defaultdict(lambda: deque(maxlen=KEPT_MESSAGES)), init=False
    )
    #: Monotonic time at which the last wait left a channel.
    _left_at: dict[str, float] = field(factory=dict, init=False)
    #: Monotonic time of the latest check for channels to unsubscribe.
    _swept_at: float = field(default=0.0, init=False)
    #: Channels whose subscription a lost connection has ended, until the server confirms it again.
    _missed: set[str] = field(factory=set, init=False)
    #: The secret of the messages about ids, by channel; empty if the queue had none at the latest read.
    secrets: dict[str, bytes] = field(factory=dict, init=False, repr=False)
    #: The number in the latest message of each channel, if one arrived. A lost connection replaces this
    #: dictionary. Everybody can send the number of a channel `work`; it only decides whether a wait reads.
    latest: dict[str, int] = field(factory=dict, init=False)
    #: The callbacks for the ends of ids, which need no wait.
    end_watches: StoredEndWatches = field(factory=StoredEndWatches, init=False)

    async def listen(self, channels: Iterable[str], wait: Wait) -> bool:
        """Subscribe to these channels, so that each message that concerns `wait` wakes it.

        Return when the server has confirmed the subscriptions, or after 1 s without a confirmation: True if
        all of them were confirmed when the call began.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_listening(), name="dibs-redis-subscription")
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
            # Without a server, no confirmation arrives, and the wait polls instead.
            await asyncio.wait(unconfirmed, timeout=1.0)
        return not unconfirmed

    def leave(self, channels: Iterable[str], wait: Wait) -> None:
        for channel in channels:
            self._waits[channel].discard(wait)
            if not self._waits[channel]:
                del self._waits[channel]
                self._left_at[channel] = time.monotonic()
        self._unsubscribe_left()

    def wake_all(self) -> None:
        """Wake every wait: messages were lost, the manual clock moved, or the storage closes."""
        self.end_watches.notify_all()
        for waits in self._waits.values():
            for wait in waits:
                _wake_unknown(wait)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self.wake_all()

    def is_confirmed(self, channels: Iterable[str]) -> bool:
        """Return whether the server has confirmed all these channels and so sends every message on them."""
        return all((one := self._confirmed.get(channel)) is not None and one.done() for channel in channels)

    # -- the connection ------------------------------------------------------------------------------

    async def _keep_listening(self) -> None:
        pause = 0.0
        while True:
            try:
                await asyncio.sleep(pause)
                await self._listen_until_lost()
            except (RedisError, StorageError, OSError, TimeoutError) as error:
                log.warning(
                    "no wake-ups from %s, polling until it is back: %s",
                    self._servers.url,
                    summarize_exception(error),
                )
            # All messages until the next confirmation are lost.
            self._confirmed = {channel: asyncio.get_running_loop().create_future() for channel in self._waits}
            self._missed = {*self._confirmed}
            self._naming.clear()
            self.latest = {}
            self.wake_all()
            pause = min(1.0, pause * 2 or 0.05)

    async def _listen_until_lost(self) -> None:
        connection = await self._servers.connect_subscriber()
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
        # Forget the messages of an earlier subscription: messages between the two are missing.
        self._forget_messages(channel)
        confirmed = self._confirmed.get(channel)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)
        if channel in self._missed:
            # A wait that read its queues before this confirmation may have missed a message. Wake it, so that
            # it reads them again.
            self._missed.discard(channel)
            for wait in self._waits.get(channel, ()):
                _wake_unknown(wait)

    def _receive_change(self, channel: str, raw: bytes) -> None:
        waits = self._waits.get(channel, ())
        if channel.endswith((":ended", ":reported")):
            self._receive_ids(channel, raw, waits)
        elif channel.endswith(":work"):
            self._receive_work(channel, raw, waits)
        else:
            for wait in waits:
                wait.wake()
        if not waits:
            self._unsubscribe_left()

    def _receive_work(self, channel: str, raw: bytes, waits: Iterable[Wait]) -> None:
        if len(raw) > MAX_DIGITS or not raw.isdigit():
            return  # no script of dibs has sent it
        number = self.latest[channel] = int(raw)
        for wait in waits:
            if wait.is_news(channel, number):
                wait.wake()

    def _receive_ids(self, channel: str, raw: bytes, waits: Iterable[Wait]) -> None:
        naming = self._read_proven(channel, raw)
        if naming is None:
            self.latest.pop(channel, None)  # the next wait reads the state, and the secret if it is new
            self.end_watches.notify(channel, {})
            for wait in waits:
                _wake_unknown(wait)
            return
        if self.has_message(channel, naming.now):
            return  # somebody has sent it again
        self._naming[channel].append(naming)
        self.latest[channel] = max(naming.now, self.latest.get(channel, 0))
        self.end_watches.notify(channel, naming.ids)
        for wait in waits:
            if not wait.ids or naming.may_concern(wait.ids):
                wait.note_named(channel, naming.among(wait.ids))
                wait.wake()

    def _read_proven(self, channel: str, raw: bytes) -> NamingMessage | None:
        """Return a message about ids; None if nothing proves that a script of dibs has sent it."""
        proof, message, secret = raw[:PROOF], raw[PROOF:], self.secrets.get(channel)
        if not secret or len(raw) > MAX_MESSAGE:
            return None
        signed = secret + channel.encode() + message + secret
        expected = sha1(signed, usedforsecurity=False).hexdigest().encode()
        return NamingMessage(message) if compare_digest(proof, expected) else None

    def _unsubscribe_left(self) -> None:
        """Unsubscribe from channels that had no waits for LINGER seconds, to save their messages and memory.

        Checks all channels at most once in LINGER seconds.
        """
        now = time.monotonic()
        if self._connection is None or now - self._swept_at < LINGER:
            return
        self._swept_at = now
        left = [one for one, at in self._left_at.items() if now - at > LINGER and not self._is_used(one)]
        for channel in left:
            self._confirmed.pop(channel, None)
            self.secrets.pop(channel, None)
            self._forget_messages(channel)
        self._left_at = {
            one: at for one, at in self._left_at.items() if now - at <= LINGER or one in self.end_watches
        }
        if left:
            self._connection.send("UNSUBSCRIBE", *left)

    def _is_used(self, channel: str) -> bool:
        return channel in self._waits or channel in self.end_watches

    def _forget_messages(self, channel: str) -> None:
        self._naming.pop(channel, None)
        self.latest.pop(channel, None)

    def watch_end(self, channel: str, id: str, since: int, on_outcome: OnOutcome) -> StopWatching | None:
        """Call `on_outcome` at the next message about an id, or if messages may be lost.

        Return None if a message about the id after the number `since` may have come.
        """
        if self.named_since(channel, since, frozenset((id,))) != frozenset():
            return None  # it is named, or messages are missing
        self._left_at[channel] = time.monotonic()
        return self.end_watches.add(channel, id, on_outcome)

    # -- kept messages -------------------------------------------------------------------------------

    def has_message(self, channel: str, number: int) -> bool:
        """Return whether the message about the step `number`, or a later one, has arrived."""
        messages = self._naming.get(channel)
        return messages is not None and len(messages) > 0 and messages[-1].now >= number

    def named_since(self, channel: str, token: int, ids: AbstractSet[str]) -> frozenset[str] | None:
        """Return those of the ids that messages after a number named; None if messages are missing."""
        found: set[str] = set()
        before = None
        for message in reversed(self._naming.get(channel, ())):
            if before is not None and message.now != before:
                return None  # a message between the two is missing
            if message.now <= token:
                return frozenset(found)
            if (named := message.among(ids)) is None:
                return None
            found |= named
            before = message.before
        return None if before is None or before > token else frozenset(found)

    def outcomes_since(self, channel: str, token: int, ids: Collection[str]) -> dict[str, bytes]:
        """Return the latest packed outcome of each of the ids, from the messages after a token."""
        found = [one.ids for one in self._naming.get(channel, ()) if one.now > token]
        return {id: one[id] for one in found for id in ids if one.get(id)}


def _wake_unknown(wait: Wait) -> None:
    """Wake a wait that may have missed messages, so that it reads its queues again."""
    wait.note_ended(None)
    wait.note_reported(None)
    wait.wake()


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
