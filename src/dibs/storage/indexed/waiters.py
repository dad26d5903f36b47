"""Who waits for what in one place, and who is woken by a step. Waiters may sit on several loops."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident

from dibs.model.results import WaitResult
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper

#: How many of the latest steps with an end are remembered, for a wait that begins a little late.
REMEMBERED = 64


class Waiter(Sleeper):
    """One wait: what it watches, and the loop it is to be woken on."""

    def __init__(self, watch: Watch, queues: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__()
        self.watch = watch
        self.queues = queues
        self.ids = frozenset(ids)
        self._thread = get_ident()

    def wake(self) -> None:
        """End the wait, from whatever thread this is."""
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            if self._thread == get_ident():
                # Its loop does not sleep while we are here, so the call to the system that wakes it is saved.
                super().wake()
            else:
                self.loop.call_soon_threadsafe(super().wake)


class Deadline:
    """A moment on the monotonic clock, or never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def remaining(self) -> float | None:
        """How many seconds are left; None for never."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self._at is not None and time.monotonic() >= self._at


class Wakeups:
    """The waits of one place. Every method is called under the storage's lock."""

    def __init__(self) -> None:
        self._by_queue: defaultdict[tuple[Watch, str], set[Waiter]] = defaultdict(set)
        self._by_id: defaultdict[tuple[str, str], set[Waiter]] = defaultdict(set)
        self._ends: defaultdict[str, deque[tuple[int, tuple[str, ...]]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )
        self._ended = 0
        #: Steps with an end up to here may have been missed.
        self._missed = 0

    def token(self, watch: Watch, queue: QueueIndex) -> str:
        """Return where a queue stands for those who watch this."""
        if watch == "work":
            return str(queue.work_version)
        return queue.log.end if watch == "events" else str(self._ended)

    def has_changed(self, waiter: Waiter, index: Index, since: Mapping[str, str]) -> bool:
        """Tell whether something happened that the waiter has not seen."""
        queues = [index.find_queue(name) for name in waiter.queues]
        if waiter.watch == "work":
            return any(_has_work(queue, since.get(queue.name)) for queue in queues)
        if waiter.watch == "events":
            return any(queue.log.end != since.get(queue.name, queue.log.end) for queue in queues)
        return any(self._ended_since(queue.name, waiter.ids, since.get(queue.name)) for queue in queues)

    def _ended_since(self, queue: str, ids: frozenset[str], token: str | None) -> bool:
        if token is None:
            return False
        if not token.isdecimal() or int(token) < self._missed:
            return True  # what happened since is not known: let the waiter look
        remembered = self._ends.get(queue)
        if not remembered:
            return False
        if len(remembered) == REMEMBERED and remembered[0][0] > int(token):
            return True  # some of what happened is forgotten: let the waiter look
        return any(step > int(token) and not ids.isdisjoint(ended) for step, ended in remembered)

    def add(self, waiter: Waiter) -> None:
        """Begin a wait."""
        for key in self._keys(waiter):
            key.add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """End a wait, without a trace."""
        for key in self._keys(waiter):
            key.discard(waiter)
        for queue in waiter.queues:
            if not self._by_queue[waiter.watch, queue]:
                del self._by_queue[waiter.watch, queue]
            for id in waiter.ids:
                if not self._by_id[queue, id]:
                    del self._by_id[queue, id]

    def _keys(self, waiter: Waiter) -> Iterable[set[Waiter]]:
        if waiter.watch == "ids":
            return [self._by_id[queue, id] for queue in waiter.queues for id in waiter.ids]
        return [self._by_queue[waiter.watch, queue] for queue in waiter.queues]

    def notify(self, step: Step) -> None:
        """Wake those whom a step concerns."""
        for queue, changes in step:
            name = queue.name
            if changes.slots or changes.settings is not None:
                self._wake(self._by_queue.get(("work", name), ()))
            if changes.entries:
                self._wake(self._by_queue.get(("events", name), ()))
            if changes.ended:
                self._ended += 1
                self._ends[name].append((self._ended, tuple(changes.ended)))
                if self._by_id:
                    for id in changes.ended:
                        self._wake(self._by_id.get((name, id), ()))

    def wake_all(self) -> None:
        """End every wait: the storage closes, or time was moved by hand."""
        for waiters in [*self._by_queue.values(), *self._by_id.values()]:
            self._wake(waiters)

    def wake_all_after_gap(self) -> None:
        """End every wait, and let those to come look: steps happened that nobody told of one by one."""
        self._ended += 1
        self._missed = self._ended
        self.wake_all()

    @staticmethod
    def _wake(waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            waiter.wake()


def wait_result(wakeups: Wakeups, index: Index, waiter: Waiter, *, woken: bool) -> WaitResult:
    """Return the answer to a wait, as things stand."""
    tokens = {name: wakeups.token(waiter.watch, index.find_queue(name)) for name in waiter.queues}
    return WaitResult(woken=woken, since=tokens)


def _has_work(queue: QueueIndex, token: str | None) -> bool:
    return bool(queue.due) if token is None else str(queue.work_version) != token


def seconds_until_due(index: Index, waiter: Waiter) -> float | None:
    """Return how long it is until the next scheduled job of a wait for work; None when there is none."""
    if waiter.watch != "work":
        return None
    due = [at for name in waiter.queues if (at := index.find_queue(name).next_due()) is not None]
    return max(0.0, min(due) / 1000 - time.time()) if due else None


async def sleep_until(waiter: Waiter, *seconds: float | None) -> bool:
    """Wait until the waiter is woken, or the least of these times is over; tell whether it was woken."""
    limits = [one for one in seconds if one is not None]
    return await waiter.sleep(min(limits) if limits else None)
