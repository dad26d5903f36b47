"""How a wait waits: for a notification, for the next scheduled job, and for the slow poll behind both.

The first look at the server is saved where nothing can have changed unheard: notifications are on, and what
the last claim found is remembered. So an idle worker, and whoever waits for a result, ask nothing until told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from dibs.model.results import ClaimResult, WaitResult
from dibs.storage.postgres.network.server import Server
from dibs.storage.postgres.wakeups.listener import Bell, Listener, Waiter, earliest
from dibs.storage.protocol import Watch

#: How long the server goes on notifying after a look, with some to spare, s.
HEARD_SECONDS: Final = 25.0
#: How soon a log is looked at again that holds entries which may not be shown yet, s.
HIDDEN_SECONDS: Final = 0.02


class Look(NamedTuple):
    """Where a queue stands (watch() in 0009); times in ms."""

    name: str
    number: int = 0
    now: int = 0
    #: A claim would find something.
    due: bool = False
    next_due: int | None = None
    ends_at: int | None = None
    hidden: bool = False
    #: Until now nobody was known to listen.
    unheard: bool = False


class Left(NamedTuple):
    """What a claim left behind: its token, and in how many seconds the next scheduled job was due then."""

    token: str
    due_in: float | None
    at: float


class Waiting:
    """The waits of one storage."""

    def __init__(self, server: Server, poll: float, *, manual: bool) -> None:
        self._server = server
        self._poll = poll
        self._manual = manual
        self._bell = Bell()
        self._listener = Listener(self._bell, server.queries.channel, server.connect, server.url)
        self._looked: dict[tuple[Watch, str], float] = {}
        self._left: dict[str, Left] = {}

    async def close(self) -> None:
        """End every wait."""
        await self._listener.stop()
        self._bell.ring_all()

    def token(self, queue: str) -> str:
        """Return the token of a claim that begins now; an empty one while nobody would be told of work."""
        return self._bell.token("work", queue) if self._heard("work", [queue]) > 0 else ""

    def claimed(self, queue: str, claim: ClaimResult, limit: int) -> None:
        """Take note of what a claim left in the line; one that got all it wanted cannot know."""
        if claim.lost or len(claim.jobs) >= limit:
            self._left.pop(queue, None)
            return
        due_in = None if claim.next_due is None else (claim.next_due - claim.now) / 1000
        self._left[queue] = Left(claim.token, due_in, time.monotonic())

    def _heard(self, watch: Watch, queues: Iterable[str]) -> float:
        """Return for how many seconds at least the server will notify of all of these."""
        now = time.monotonic()
        looked = min((self._looked.get((watch, queue), -inf) for queue in queues), default=now)
        return looked + HEARD_SECONDS - now

    async def wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        """Wait for what the waiter watches."""
        await self._listener.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._bell.join(waiter)
        try:
            woken, tokens = await self._until(waiter, since, deadline)
        finally:
            self._bell.leave(waiter)
        return WaitResult(woken=woken, since=tokens)

    async def _until(
        self, waiter: Waiter, since: Mapping[str, str], deadline: float | None
    ) -> tuple[bool, dict[str, str]]:
        looks = self._remembered(waiter, since)
        while True:
            looks = await self._look(waiter) if looks is None else looks
            tokens = self._tokens(waiter, looks)
            if waiter.watch == "events":
                # Who says nothing waits for what comes after the first look.
                since = {**tokens, **since}
            if any(self._news(waiter, look, since) for look in looks):
                return True, tokens
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return waiter.woken, tokens
            due = None if self._manual else earliest(_seconds_to(look) for look in looks)
            hidden = HIDDEN_SECONDS if any(look.hidden for look in looks) else None
            heard = self._heard(waiter.watch, (look.name for look in looks))
            pause = earliest((self._poll, left, due, hidden, max(0.0, heard)))
            woken = await waiter.sleep(pause or 0.0)
            self._server.check_open()
            if woken or (due is not None and due == pause):
                return True, tokens
            looks = None

    def _remembered(self, waiter: Waiter, since: Mapping[str, str]) -> list[Look] | None:
        """Return what a look would find where that is known; a notification under way will still ring."""
        if self._manual or waiter.watch == "events" or self._heard(waiter.watch, waiter.queues) <= 0:
            return None
        if waiter.watch == "ids":
            return [Look(name) for name in waiter.queues]
        left = [(name, self._left.get(name)) for name in waiter.queues]
        if any(one is None or not one.token or one.token != since.get(name) for name, one in left):
            return None
        return [_look_of(name, one) for name, one in left if one is not None]

    async def _look(self, waiter: Waiter) -> list[Look]:
        params = {"queues": list(waiter.queues), "kind": waiter.watch, "now": 0 if self._manual else None}
        rows = await self._server.fetch(self._server.queries["watch"], params, writes=False)
        looks = [Look(*row) for row in rows]
        for look in looks:
            self._bell.learn(look.number, look.name)
            self._looked[waiter.watch, look.name] = time.monotonic()
        return looks

    def _news(self, waiter: Waiter, look: Look, since: Mapping[str, str]) -> bool:
        token = since.get(look.name)
        if waiter.watch == "events":
            return token is not None and not token.startswith(_entry(look.ends_at))
        if token is not None and self._bell.moved(waiter, look.name, token):
            return True
        return look.due if waiter.watch == "work" else look.unheard

    def _tokens(self, waiter: Waiter, looks: Sequence[Look]) -> dict[str, str]:
        if waiter.watch == "events":
            ends = {look.name: _entry(look.ends_at) for look in looks}
            return {name: ends.get(name, "") for name in waiter.queues}
        return {name: self._bell.token(waiter.watch, name) for name in waiter.queues}


def _look_of(name: str, left: Left) -> Look:
    """Return a look at a queue as a claim left it, in ms from now."""
    if left.due_in is None:
        return Look(name)
    return Look(name, next_due=max(0, round((left.at + left.due_in - time.monotonic()) * 1000)))


def _seconds_to(look: Look) -> float | None:
    return None if look.next_due is None else max(0.0, (look.next_due - look.now) / 1000)


def _entry(ends_at: int | None) -> str:
    """Return the end of a log as the first part of its last event's offset."""
    return "" if ends_at is None else f"{ends_at:016x}"
