"""The verb `wait` on Redis: how a wait learns the state of its queues, and when it ends.

Most waits for ids read no queue from the server. An enqueue just before the wait, and a message that ends its
sleep, both contain the state of the queue. Only if neither is known, or messages were lost or have no proof,
the wait reads its queues. A message on another channel is only a hint.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from attrs import define, field

from dibs.errors import NotRunning
from dibs.model.job import Outcome
from dibs.model.results import WaitResult
from dibs.storage.abilities import OnOutcome, StopWatching
from dibs.storage.protocol import Watch
from dibs.storage.redis.codec.jobs import DECODE_ERRORS
from dibs.storage.redis.codec.requests import work_changed, work_token
from dibs.storage.redis.codec.slots import decode_outcome
from dibs.storage.redis.wakeups.listener import Subscription, Wait

#: The last parts of the names of a queue's channels, for each kind of wait. A wait for progress without ids
#: does not use the channel `ended`.
CHANNELS: Final[dict[Watch, tuple[str, ...]]] = {
    "work": ("work",),
    "events": ("told",),
    "ids": ("ended",),
    "progress": ("reported", "ended"),
}
#: The kinds of wait whose messages name ids.
BY_ID: Final = ("ids", "progress")

#: Number of queues whose time is remembered, so that names used once cost no memory.
MAX_CLOCKS: Final = 4096


class WatchedQueue(NamedTuple):
    """The state of one queue that waits compare, as storage/redis/lua/watch.lua returns it.

    The values that the kind of the wait does not need have their defaults.
    """

    #: Time of the server, ms.
    now: int
    #: Number of the last step after which a claim may find more jobs.
    work: str = ""
    #: Number of the last step that ended an id.
    ended: str = ""
    #: Id of the last entry of the log, "" for an empty log.
    last_log_entry: str = ""
    #: Time of the next scheduled job, ms.
    next_due: int | None = None
    #: True if a claim would find a job.
    has_due: bool = False
    #: Number of the last report with progress.
    reported: str = ""
    #: The secret that proves the messages about ids; empty before the first lease of the queue.
    secret: bytes = b""

    def number(self, channel: str) -> int:
        """Return the number in the last message on a channel: `work`, `ended` or `reported`."""
        return int(getattr(self, channel.rpartition(":")[2]) or 0)

    def token(self, watch: Watch) -> str:
        match watch:
            case "work":
                return work_token(self.work, "" if self.next_due is None else str(self.next_due))
            case "ids":
                return self.ended
            case "progress":
                return f"{self.reported}/{self.ended}"
            case "events":
                return self.last_log_entry


def decode_state(reply: list[Any]) -> WatchedQueue:
    now, work, ended, last_log_entry, due, has_due, reported, secret = reply
    return WatchedQueue(
        int(now), work.decode(), ended.decode(), last_log_entry.decode(),
        int(due) if due else None, bool(has_due), reported.decode(), secret,
    )  # fmt: skip


#: States by queue.
States = Mapping[str, WatchedQueue]


@define(eq=False)
class RedisWaits:
    """The state that all waits of one open storage share: subscription, clock of the server, and options."""

    subscription: Subscription
    #: Reads the states of queues from the server, as far as this kind of wait needs them.
    read_states: Callable[[Sequence[str], Watch], Awaitable[list[WatchedQueue]]]
    #: Returns the prefix of the channels of a queue.
    channel_prefix: Callable[[str], str]
    #: Seconds between two reads of a queue without messages.
    poll: float
    manual: bool
    closed: bool = field(default=False, init=False)
    #: For each queue, a time of its server in ms, and the monotonic time at which it was read.
    clocks: dict[str, tuple[int, float]] = field(factory=dict, init=False)

    def note_time(self, queue: str, now: int) -> None:
        """Store the time of the server, ms, from a reply about this queue. A later wait counts on from it."""
        if len(self.clocks) > MAX_CLOCKS:
            self.clocks.clear()  # a wait without a known time reads its queue once
        self.clocks[queue] = (now, time.monotonic())

    async def close(self) -> None:
        self.closed = True
        await self.subscription.close()

    def wake_all(self) -> None:
        self.subscription.wake_all()

    def watch_end(self, queue: str, id: str, revision: int, on_outcome: OnOutcome) -> StopWatching | None:
        """Call back when an id has ended; see dibs.storage.abilities.EndWatches."""
        if self.manual or self.closed:
            return None
        return self.subscription.watch_end(self.channel_prefix(queue) + "ended", id, revision, on_outcome)

    async def wait(
        self,
        queues: Sequence[str],
        watch: Watch,
        ids: Collection[str],
        since: Mapping[str, str],
        timeout: float | None,
    ) -> WaitResult:
        return await RedisWait(self, queues, watch, ids, since).run(timeout)


class RedisWait(Wait):
    """One call of `wait` on Redis."""

    def __init__(
        self,
        waits: RedisWaits,
        queues: Sequence[str],
        watch: Watch,
        ids: Collection[str],
        since: Mapping[str, str],
    ) -> None:
        super().__init__(queues, watch, ids, since)
        self._waits, self._subscription = waits, waits.subscription
        names = CHANNELS[watch] if self.ids or watch != "progress" else ("reported",)
        #: The queue of each channel.
        self._channels = {waits.channel_prefix(queue) + name: queue for queue in queues for name in names}

    async def subscribe(self) -> bool:
        return await self._subscription.listen(self._channels, self)

    def unsubscribe(self) -> None:
        self._subscription.leave(self._channels, self)

    def check_open(self) -> None:
        if self._waits.closed:
            raise NotRunning("the storage was closed while a wait was pending")

    def ends_on_message(self) -> bool:
        # The number in a message about work has no proof. So the wait returns its old token, and a claim, or
        # the next wait, reads a new one.
        return self._waits.manual or self.watch == "work"

    def is_news(self, channel: str, number: int) -> bool:
        before = self.since.get(self._channels[channel], "").partition("/")[0]
        return self._waits.manual or not before.isdecimal() or number > int(before)

    async def read_state(self) -> States:
        self.check_open()
        # Take the dictionary before the read. If the connection is lost during the read, the result belongs
        # into this old dictionary, not into its replacement.
        latest = self._subscription.latest if self._subscription.is_confirmed(self._channels) else {}
        queues = list(dict.fromkeys(self.queues))
        states = dict(zip(queues, await self._waits.read_states(queues, self.watch), strict=True))
        for queue, state in states.items():
            self._waits.note_time(queue, state.now)
        if self.watch != "events":
            for channel, queue in self._channels.items():
                if self.watch in BY_ID:
                    self._subscription.secrets[channel] = states[queue].secret
                latest[channel] = max(latest.get(channel, 0), states[queue].number(channel))
        return states

    def known_state(self) -> States | None:
        latest = self._subscription.latest
        if (
            self._waits.manual
            or self.watch in ("events", "progress")
            or not self._subscription.is_confirmed(self._channels)
        ):
            return None
        states: dict[str, WatchedQueue] = {}
        for channel, queue in self._channels.items():
            newest, clock = latest.get(channel), self._waits.clocks.get(queue)
            if newest is None or clock is None:
                return None
            now = clock[0] + round((time.monotonic() - clock[1]) * 1000)
            if self.watch == "ids":
                states[queue] = WatchedQueue(now, ended=str(newest))
                continue
            number, _, due = self.since.get(queue, "").partition("/")
            if not number.isdecimal() or int(number) < newest:
                return None
            states[queue] = WatchedQueue(now, work=number, next_due=int(due) if due.isdecimal() else None)
        return states

    def known_state_after_message(self, state: States) -> States | None:
        latest = self._subscription.latest
        if self._waits.manual or self.watch not in BY_ID:
            return None
        states = dict(state)
        for channel, queue in self._channels.items():
            if channel not in latest:
                return None
            newest, before = str(latest[channel]), states[queue]
            reported = channel.endswith(":reported")
            states[queue] = before._replace(reported=newest) if reported else before._replace(ended=newest)
        return states

    def has_changed(self, state: States, *, was_woken: bool) -> bool:
        if was_woken and self.watch in BY_ID:
            return True
        changed = [
            self._queue_changed(channel, queue, state[queue]) for channel, queue in self._channels.items()
        ]
        return any(changed)

    def _queue_changed(self, channel: str, queue: str, state: WatchedQueue) -> bool:
        since = self.since.get(queue)
        if since is None:
            return self.watch == "work" and state.has_due
        if self.watch == "work":
            return work_changed(since, state.work, state.now)
        if since == state.token(self.watch):
            return False
        if self.watch == "events":
            return True
        before = self._number_in_token(channel, since)
        if before is not None and state.number(channel) <= before:
            return False  # the token may be that of an enqueue after the latest end
        named = None if before is None else self._subscription.named_since(channel, before, self.ids)
        self.note_named(channel, named)
        return named is None or bool(named)

    def _number_in_token(self, channel: str, token: str) -> int | None:
        """Return the number of a channel in a token of a wait for ids or progress; None if it has none."""
        reported, _, ended = token.rpartition("/")
        number = reported if channel.endswith(":reported") else ended
        return int(number) if number.isdecimal() else None

    def note_named(self, channel: str, ids: Collection[str] | None) -> None:
        """Add the watched ids that a message of this channel named. None: it is unknown which ones."""
        if channel.endswith(":reported"):
            self.note_reported(ids)
        else:
            self.note_ended(ids)

    def tokens(self, state: States) -> dict[str, str]:
        return {queue: one.token(self.watch) for queue, one in state.items()}

    def ended_ids(self, state: States) -> frozenset[str] | None:
        # A state that was read from the server may be newer than the latest message.
        if self.watch != "ids" or not all(
            self._subscription.has_message(channel, int(state[queue].ended))
            for channel, queue in self._channels.items()
        ):
            return None
        return super().ended_ids(state)

    def outcomes(self, state: States) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for channel, queue in self._channels.items() if self.watch == "ids" else ():
            since = self.since.get(queue, "")
            if since.isdecimal():
                packed = self._subscription.outcomes_since(channel, int(since), self.ids)
                for id, raw in packed.items():
                    try:
                        outcome = decode_outcome(raw)
                    except DECODE_ERRORS:
                        continue  # the wait reads the state instead, and finds the damage
                    # `now` may be an estimate from before the end.
                    now = max(state[queue].now, outcome.ended_at)
                    if outcome.expires_at is None or now < outcome.expires_at:
                        found[id] = outcome
        return found

    def seconds_until_due(self, state: States) -> float | None:
        """Return the seconds until the next scheduled job falls due, by the clock of the server."""
        if self._waits.manual or self.watch != "work":
            return None
        seconds = [(one.next_due - one.now) / 1000 for one in state.values() if one.next_due is not None]
        return max(0.0, min(seconds)) if seconds else None

    def seconds_until_poll(self, state: States) -> float:
        return self._waits.poll
