"""wait(): a look at each queue, and then sleep until a message, the next due job, or the slow poll.

A look is saved where messages have told where a queue stands: before the sleep of a worker that has just
claimed, and after it. To lose a message costs a slow poll, for then there is a look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dibs.errors import NotRunning
from dibs.model.job import Outcome
from dibs.model.results import WaitResult
from dibs.storage.protocol import Watch
from dibs.storage.redis.codec.requests import work_has_moved, work_token
from dibs.storage.redis.codec.slots import alive
from dibs.storage.redis.wakeups.listener import Subscription, Waiter

CHANNELS: Final[dict[Watch, str]] = {"work": "work", "events": "told", "ids": "ended"}


class Standing(NamedTuple):
    """Where a queue stands (look.lua)."""

    now: int
    work: str = ""
    ended: str = ""
    told: str = ""
    next_due: int | None = None
    ready: bool = False

    def count(self, watch: Watch) -> int:
        """Return the number that grows with each message of a channel."""
        return int(self.work if watch == "work" else self.ended)

    def token(self, watch: Watch) -> str:
        if watch == "work":
            return work_token(self.work, "" if self.next_due is None else str(self.next_due))
        return self.ended if watch == "ids" else self.told


def standing(reply: list[Any]) -> Standing:
    now, work, ended, told, due, ready = reply
    return Standing(
        int(now), work.decode(), ended.decode(), told.decode(),
        int(due) if due else None, bool(ready),
    )  # fmt: skip


#: Looks at a queue, and tells the beginning of its keys.
Look = Callable[[str], Awaitable[Standing]]


class Waits:
    """All waits of one open storage."""

    def __init__(
        self,
        subscription: Subscription,
        look: Look,
        beginning: Callable[[str], str],
        poll: float,
        *,
        manual: bool,
    ) -> None:
        self._subscription, self._look, self._beginning = subscription, look, beginning
        self._poll, self._manual = poll, manual
        self._closed = False
        #: The storage's clock, one for each queue, and when it was read here.
        self._clocks: dict[str, tuple[int, float]] = {}

    def saw(self, queue: str, now: int) -> None:
        """Take note of what time it is for a queue, ms."""
        self._clocks[queue] = (now, time.monotonic())

    async def close(self) -> None:
        self._closed = True
        await self._subscription.close()

    def wake_all(self) -> None:
        self._subscription.wake_all()

    async def wait(
        self,
        queues: Sequence[str],
        watch: Watch,
        ids: Sequence[str],
        since: Mapping[str, str],
        timeout: float | None,
    ) -> WaitResult:
        wait = _Wait(queues, watch, frozenset(ids), dict(since))
        channels = {self._beginning(queue) + CHANNELS[watch]: queue for queue in queues}
        waiter = Waiter(wait.ids)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            # Subscribed first: what happens after the look is heard.
            await self._subscription.listen(channels, waiter)
            return await self._until(wait, channels, waiter, deadline)
        finally:
            self._subscription.leave(channels, waiter)

    async def _until(
        self, wait: _Wait, channels: Mapping[str, str], waiter: Waiter, deadline: float | None
    ) -> WaitResult:
        known = self._remembered(wait, channels)
        while True:
            # Whatever is told from here on counts, also what happened just before the look.
            heard, waiter.woken = waiter.woken, False
            stands = known or await self._look_at(channels, wait.watch)
            moved = self._moved(wait, channels, stands) or (heard and wait.watch == "ids")
            left = None if deadline is None else deadline - time.monotonic()
            if moved or (left is not None and left <= 0):
                return wait.told(stands, self._ends(wait, channels, stands), woken=moved)
            wait.remember(stands)
            due = await self._sleep(wait, stands, waiter, left)
            if self._closed:
                raise NotRunning("the storage was closed")
            if due:
                return wait.told(stands, {}, woken=True)
            known = self._as_told(wait, channels, stands) if waiter.woken else None

    async def _look_at(self, channels: Mapping[str, str], watch: Watch) -> dict[str, Standing]:
        if self._closed:
            raise NotRunning("the storage was closed")
        # Of this moment: what was missed meanwhile makes it another.
        latest = self._subscription.latest if self._subscription.hears(channels) else {}
        found = await asyncio.gather(*map(self._look, channels.values()))
        for (channel, queue), stands in zip(channels.items(), found, strict=True):
            self.saw(queue, stands.now)
            if watch != "events":
                latest[channel] = max(latest.get(channel, 0), stands.count(watch))
        return dict(zip(channels.values(), found, strict=True))

    def _remembered(self, wait: _Wait, channels: Mapping[str, str]) -> dict[str, Standing] | None:
        """Return where the queues stand if that is known; None asks for a look."""
        latest = self._subscription.latest
        if self._manual or wait.watch == "events" or not self._subscription.hears(channels):
            return None
        found: dict[str, Standing] = {}
        for channel, queue in channels.items():
            newest, clock = latest.get(channel), self._clocks.get(queue)
            if newest is None or clock is None:
                return None
            now = clock[0] + round((time.monotonic() - clock[1]) * 1000)
            if wait.watch == "ids":
                found[queue] = Standing(now, ended=str(newest))
                continue
            count, _, due = wait.since.get(queue, "").partition("/")
            if not count.isdecimal() or int(count) < newest:
                return None
            found[queue] = Standing(now, work=count, next_due=int(due) if due.isdecimal() else None)
        return found

    def _as_told(
        self, wait: _Wait, channels: Mapping[str, str], stands: Mapping[str, Standing]
    ) -> dict[str, Standing] | None:
        """Return where the queues stand after a message; None asks for a look."""
        latest = self._subscription.latest
        if self._manual or wait.watch == "events":
            return None
        found = dict(stands)
        for channel, queue in channels.items():
            if channel not in latest:
                return None
            newest, stood = str(latest[channel]), stands[queue]
            if wait.watch == "ids":
                found[queue] = Standing(stood.now, ended=newest)
            elif newest != stood.work:
                # When the next falls due was not told: the token says now, and the claim will know.
                found[queue] = Standing(stood.now, work=newest, next_due=stood.now)
        return found

    def _moved(self, wait: _Wait, channels: Mapping[str, str], stands: Mapping[str, Standing]) -> bool:
        for channel, queue in channels.items():
            since, stood = wait.since.get(queue), stands[queue]
            if since is None:
                moved = wait.watch == "work" and stood.ready
            elif wait.watch == "work":
                moved = work_has_moved(since, stood.work, stood.now)
            else:
                moved = since != stood.token(wait.watch) and self._concerns(wait, channel, since)
            if moved:
                return True
        return False

    def _concerns(self, wait: _Wait, channel: str, since: str) -> bool:
        """Tell whether what happened after a token may be what is waited for."""
        if wait.watch != "ids" or not since.isdecimal():
            return True
        return self._subscription.ended_since(channel, int(since), wait.ids)

    def _ends(
        self, wait: _Wait, channels: Mapping[str, str], stands: Mapping[str, Standing]
    ) -> dict[str, Outcome]:
        """Return how the ids ended that are waited for, as far as it was told."""
        found: dict[str, Outcome] = {}
        for channel, queue in channels.items() if wait.watch == "ids" else ():
            since = wait.since.get(queue, "")
            if since.isdecimal():
                told = self._subscription.outcomes_since(channel, int(since), wait.ids)
                ends = {id: alive(raw, stands[queue].now) for id, raw in told.items()}
                found.update((id, outcome) for id, outcome in ends.items() if outcome is not None)
        return found

    async def _sleep(
        self, wait: _Wait, stands: Mapping[str, Standing], waiter: Waiter, left: float | None
    ) -> bool:
        """Sleep until there is reason to look again; True when a job has fallen due."""
        due = None if self._manual or wait.watch != "work" else seconds_until_due(stands.values())
        seconds = self._poll if left is None else min(self._poll, left)
        if due is not None and due <= seconds:
            return not await waiter.sleep(due)
        return await waiter.sleep(seconds) and self._manual


class _Wait:
    """What one wait watches, and up to where it has seen each queue."""

    def __init__(
        self, queues: Sequence[str], watch: Watch, ids: frozenset[str], since: dict[str, str]
    ) -> None:
        self.queues, self.watch, self.ids, self.since = queues, watch, ids, since

    def remember(self, stands: Mapping[str, Standing]) -> None:
        self.since = {queue: one.token(self.watch) for queue, one in stands.items()}

    def told(self, stands: Mapping[str, Standing], outcomes: Mapping[str, Outcome], *, woken: bool) -> WaitResult:
        since = {queue: one.token(self.watch) for queue, one in stands.items()}
        return WaitResult(woken=woken, since=since, outcomes=outcomes)


def seconds_until_due(stands: Any) -> float | None:
    """Return how long it is until the next scheduled job, by the clock of the storage."""
    waits = [(one.next_due - one.now) / 1000 for one in stands if one.next_due is not None]
    return max(0.0, min(waits)) if waits else None
