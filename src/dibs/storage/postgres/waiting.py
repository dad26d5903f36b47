"""How a wait waits: for a notification, for the next scheduled job, and for the slow poll behind both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dibs.model.answers import Wake
from dibs.storage.postgres.server import Server
from dibs.storage.postgres.wakeups import Bell, Listener, Waiter, earliest

#: How long the server goes on notifying after a look, with some to spare, s.
HEARD_SECONDS: Final = 25.0
#: How soon a log is looked at again that holds entries which may not be shown yet, s.
HIDDEN_SECONDS: Final = 0.02


class Waiting:
    """The waits of one storage."""

    def __init__(self, server: Server, poll: float, *, manual: bool) -> None:
        self._server = server
        self._poll = poll
        self._manual = manual
        self._bell = Bell()
        self._listener = Listener(self._bell, server.queries.channel, server.connect, server.url)
        self._looked: dict[str, float] = {}

    async def close(self) -> None:
        """End every wait."""
        await self._listener.stop()
        self._bell.ring_all()

    def token(self, queue: str) -> str:
        """Return the token of a claim that begins now; an empty one while nobody would be told of work."""
        looked = self._looked.get(queue)
        if looked is None or time.monotonic() > looked + HEARD_SECONDS:
            return ""
        return self._bell.token("work", queue)

    async def wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> Wake:
        """Wait for what the waiter watches."""
        await self._listener.start()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._bell.join(waiter)
        try:
            woken, tokens = await self._until(waiter, since, deadline)
        finally:
            self._bell.leave(waiter)
        return Wake(woken=woken, since=tokens)

    async def _until(
        self, waiter: Waiter, since: Mapping[str, str], deadline: float | None
    ) -> tuple[bool, dict[str, str]]:
        while True:
            looks = await self._look(waiter)
            tokens = self._tokens(waiter, looks)
            if waiter.watch == "events":
                # Who says nothing waits for what comes after the first look.
                since = {**tokens, **since}
            if any(self._news(waiter, look, since) for look in looks):
                return True, tokens
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return waiter.woken.is_set(), tokens
            due = None if self._manual else earliest(_seconds_to(look) for look in looks)
            pause = earliest(
                (self._poll, left, due, HIDDEN_SECONDS if any(look[6] for look in looks) else None)
            )
            woken = await waiter.wait(pause or 0.0)
            self._server.check_open()
            if woken or (due is not None and due == pause):
                return True, tokens

    async def _look(self, waiter: Waiter) -> Sequence[Any]:
        params = {"queues": list(waiter.queues), "kind": waiter.watch, "now": 0 if self._manual else None}
        looks = await self._server.fetch(self._server.queries["watch"], params, writes=False)
        for name, number, *_ in looks:
            self._bell.learn(number, name)
            if waiter.watch == "work":
                self._looked[name] = time.monotonic()
        return looks

    def _news(self, waiter: Waiter, look: Sequence[Any], since: Mapping[str, str]) -> bool:
        name, _, _, due, _, ends_at, _, unheard = look
        token = since.get(name)
        if waiter.watch == "events":
            return token is not None and not token.startswith(_entry(ends_at))
        if token is not None and self._bell.moved(waiter, name, token):
            return True
        return bool(due) if waiter.watch == "work" else bool(unheard)

    def _tokens(self, waiter: Waiter, looks: Sequence[Any]) -> dict[str, str]:
        if waiter.watch == "events":
            ends = {look[0]: _entry(look[5]) for look in looks}
            return {name: ends.get(name, "") for name in waiter.queues}
        return {name: self._bell.token(waiter.watch, name) for name in waiter.queues}


def _seconds_to(look: Sequence[Any]) -> float | None:
    now, next_due = look[2], look[4]
    return None if next_due is None else max(0.0, (next_due - now) / 1000)


def _entry(ends_at: int | None) -> str:
    """Return the end of a log as the first part of its last event's offset."""
    return "" if ends_at is None else f"{ends_at:016x}"
