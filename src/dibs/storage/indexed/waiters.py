"""The pending calls of `wait` on an index, and their wake-ups when a step changes a queue.

The waiters of a memory storage may belong to the event loops of several threads.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TypeVar

from dibs.model.results import WaitResult
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper

K = TypeVar("K")

#: Each queue remembers the ids that ended in this many latest steps. A wait with a recent token then knows
#: whether one of its ids has ended since.
REMEMBERED_STEPS = 64


class Waiter(Sleeper):
    """One pending call of `wait`: its queues, its watch (work, events or ids), and its sleep."""

    def __init__(self, watch: Watch, queues: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__()
        self.watch = watch
        self.queues = queues
        self.ids = frozenset(ids)
        #: For a wait for ids: the ids that have ended since the wait began; None if they are unknown.
        self.ended: set[str] | None = set() if watch == "ids" else None
        self._thread = get_ident()

    def wake(self) -> None:
        """End the sleep of the waiter. Any thread may call this."""
        with suppress(RuntimeError):  # the event loop is closed, and the wait with it
            if self._thread == get_ident():
                # This thread runs the loop, so the loop is awake. call_soon_threadsafe would make a system
                # call to wake it.
                super().wake()
            else:
                self.loop.call_soon_threadsafe(super().wake)


class Deadline:
    """A deadline `seconds` from now on the monotonic clock; None for never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def remaining(self) -> float | None:
        """The seconds until the deadline, at least 0.0; None if there is no deadline."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at


class Wakeups:
    """The waiters of one index. Call each method under the lock, or on the thread, that guards the index."""

    def __init__(self) -> None:
        self._by_queue: defaultdict[tuple[Watch, str], set[Waiter]] = defaultdict(set)
        self._by_id: defaultdict[tuple[str, str], set[Waiter]] = defaultdict(set)
        self._ended_ids: defaultdict[str, deque[tuple[int, tuple[str, ...]]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED_STEPS)
        )
        self._end_steps = 0
        #: Tokens below this number are too old: steps after them passed without a call of `notify`.
        self._oldest_token = 0

    def token(self, watch: Watch, queue: QueueIndex) -> str:
        """Return the token of the current state of a queue. A later wait passes it as `since`."""
        if watch == "work":
            return str(queue.work_version)
        return queue.log.end if watch == "events" else str(self._end_steps)

    def has_changed(self, waiter: Waiter, index: Index, since: Mapping[str, str]) -> bool:
        """Return whether a change after the tokens in `since` may concern the waiter."""
        queues = [index.find_queue(name) for name in waiter.queues]
        if waiter.watch == "work":
            return any(_has_work(queue, since.get(queue.name)) for queue in queues)
        if waiter.watch == "events":
            return any(queue.log.end != since.get(queue.name, queue.log.end) for queue in queues)
        for queue in queues:
            ended = self._ended_since(queue.name, waiter.ids, since.get(queue.name))
            waiter.ended = None if waiter.ended is None or ended is None else waiter.ended | ended
        return waiter.ended is None or bool(waiter.ended)

    def _ended_since(self, queue: str, ids: frozenset[str], token: str | None) -> set[str] | None:
        """Return those of `ids` that have ended after a token; None if that is unknown."""
        if token is None:
            return set()
        if not token.isdecimal() or int(token) < self._oldest_token:
            return None  # the steps since the token are unknown, so the waiter must check
        remembered = self._ended_ids.get(queue)
        if not remembered:
            return set()
        if len(remembered) == REMEMBERED_STEPS and remembered[0][0] > int(token):
            return None  # some steps since the token are forgotten, so the waiter must check
        return {id for step, ended in remembered if step > int(token) for id in ended if id in ids}

    def add(self, waiter: Waiter) -> None:
        for queue in waiter.queues:
            if waiter.watch == "ids":
                for id in waiter.ids:
                    self._by_id[queue, id].add(waiter)
            else:
                self._by_queue[waiter.watch, queue].add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, and delete the sets that become empty, so that they do not pile up."""
        for queue in waiter.queues:
            if waiter.watch == "ids":
                for id in waiter.ids:
                    _discard(self._by_id, (queue, id), waiter)
            else:
                _discard(self._by_queue, (waiter.watch, queue), waiter)

    def notify(self, step: Step) -> None:
        """Wake the waiters whose queues or ids a step has changed. Called after every step."""
        for queue, changes in step:
            name = queue.name
            if changes.slots or changes.settings is not None:
                self._wake(self._by_queue.get(("work", name), ()))
            if changes.entries:
                self._wake(self._by_queue.get(("events", name), ()))
            if changes.ended:
                self._end_steps += 1
                self._ended_ids[name].append((self._end_steps, tuple(changes.ended)))
                if self._by_id:
                    for id in changes.ended:
                        self._wake_by_id(name, id)

    def wake_all(self) -> None:
        """Wake every waiter: the storage closes, or a manual clock moved."""
        for waiters in [*self._by_queue.values(), *self._by_id.values()]:
            for waiter in waiters:
                waiter.ended = None
                waiter.wake()

    def wake_all_after_gap(self) -> None:
        """Wake every waiter after steps for which `notify` was not called.

        A later wait for ids with a token from before the gap also ends at once.
        """
        self._end_steps += 1
        self._oldest_token = self._end_steps
        self.wake_all()

    def _wake_by_id(self, queue: str, id: str) -> None:
        for waiter in self._by_id.get((queue, id), ()):
            if waiter.ended is not None:
                waiter.ended.add(id)
            waiter.wake()

    @staticmethod
    def _wake(waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            waiter.wake()


def _discard(sets: dict[K, set[Waiter]], key: K, waiter: Waiter) -> None:
    waiters = sets.get(key)
    if waiters is not None:
        waiters.discard(waiter)
        if not waiters:
            del sets[key]


def wait_result(wakeups: Wakeups, index: Index, waiter: Waiter, *, woken: bool) -> WaitResult:
    """Return the result of a wait, with the current tokens and the ids that have ended before them."""
    tokens = {name: wakeups.token(waiter.watch, index.find_queue(name)) for name in waiter.queues}
    ended = None if waiter.ended is None else frozenset(waiter.ended)
    return WaitResult(woken=woken, since=tokens, ended=ended)


def _has_work(queue: QueueIndex, token: str | None) -> bool:
    return bool(queue.due) if token is None else str(queue.work_version) != token


def seconds_until_due(index: Index, waiter: Waiter) -> float | None:
    """Return the seconds from `index.now` until a scheduled job of the waiter's queues falls due.

    Return None if no job is scheduled, and for a wait for events or ids.
    """
    if waiter.watch != "work":
        return None
    due = [at for name in waiter.queues if (at := index.find_queue(name).next_due()) is not None]
    return max(0, min(due) - index.now) / 1000 if due else None


async def sleep_until(waiter: Waiter, *seconds: float | None) -> bool:
    """Sleep until the waiter is woken, for at most the shortest of `seconds`; None is no limit.

    Return whether the waiter was woken.
    """
    limits = [one for one in seconds if one is not None]
    return await waiter.sleep(min(limits) if limits else None)
