"""How a wait waits: a look at the file, then until something changes, a job falls due, or time is up.

SQLite tells nobody of a commit. What it has is `data_version`, a number that moves when another connection
has committed and costs a few bytes to read: one task asks for it, however many waits there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from dibs.storage.protocol import Watch
from dibs_sqlite.reading import end_of_log
from dibs_sqlite.step import Queue, Step, word


@dataclass(frozen=True)
class Look:
    """What a wait sees: did something move, where do queues stand, in how many s does a job fall due."""

    moved: bool
    tokens: Mapping[str, str]
    due_in: float | None


def look(
    step: Step, watch: Watch, names: Sequence[str], ids: Sequence[str], since: Mapping[str, str]
) -> Look:
    """Tell whether something happened since the tokens; a queue without one is looked at as it is."""
    queues = [step.queue(name) for name in names]
    tokens = {queue.name: _token(step, queue, watch) for queue in queues}
    moved = [_moved(step, queue, watch, ids, since.get(queue.name)) for queue in queues]
    due = [queue.one("next_due", now=step.now) for queue in queues] if watch == "work" else []
    first = min((at for at in due if at is not None), default=None)
    return Look(any(moved), tokens, None if first is None else (first - step.now) / 1000)


def _token(step: Step, queue: Queue, watch: Watch) -> str:
    if watch == "work":
        return f"{queue.work}.{step.now}"
    return end_of_log(queue) if watch == "events" else str(step.number)


def _moved(step: Step, queue: Queue, watch: Watch, ids: Sequence[str], token: str | None) -> bool:
    if watch == "events":
        return token is not None and token != end_of_log(queue)
    if watch == "work":
        work, _, seen = (token or f"{queue.work}.0").partition(".")
        return work != str(queue.work) or bool(queue.one("fell_due", after=_at(seen), now=step.now))
    return token is not None and any(_changed(queue, id) > _at(token) for id in ids)


def _changed(queue: Queue, id: str) -> int:
    """Return when something about an id ended; of one that is not there, when any was removed."""
    found = queue.one("changed", id=word(id))
    return queue.gone if found is None else int(found)


def _at(token: str) -> int:
    # A token that is none of ours says nothing was seen: the waiter looks once more than it must.
    return int(token) if token.isdecimal() and len(token) < 19 else 0


class Bell:
    """Rings for everyone who waits on this storage; while somebody does, it listens to other processes."""

    def __init__(self, version: Callable[[], Awaitable[int]], poll: float) -> None:
        self._version, self._poll = version, poll
        self._rung = asyncio.Event()
        self._waits = 0
        self._listening: asyncio.Task[None] | None = None

    def ring(self) -> None:
        """Let every wait look."""
        rung, self._rung = self._rung, asyncio.Event()
        rung.set()

    @property
    def next(self) -> asyncio.Event:
        """What the next ring sets. Take it before you look, then nothing between is missed."""
        return self._rung

    def __enter__(self) -> None:
        self._waits += 1
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())

    def __exit__(self, *_: object) -> None:
        self._waits -= 1
        if not self._waits and self._listening is not None:
            self._listening.cancel()
            self._listening = None

    async def _listen(self) -> None:
        seen = await self._version()
        # Somebody may have committed between the first look of a wait and this.
        self.ring()
        while True:
            await asyncio.sleep(self._poll)
            version = await self._version()
            if version != seen:
                seen = version
                self.ring()


class Deadline:
    """So many seconds from now, or never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self, *others: float | None) -> float | None:
        """Return how many seconds are left, or the least of these; None for never."""
        own = None if self._at is None else max(0.0, self._at - time.monotonic())
        return min((one for one in (own, *others) if one is not None), default=None)

    @property
    def over(self) -> bool:
        """Whether it has come."""
        return self._at is not None and time.monotonic() >= self._at


async def rung(bell: asyncio.Event, timeout: float | None) -> None:
    """Wait for a ring, or until `timeout` s are over."""
    try:
        async with asyncio.timeout(timeout):
            await bell.wait()
    except TimeoutError:
        return
