"""The pending calls of `wait` on an index, their wake-ups, and the changes of the latest steps.

The waiters of a memory storage may belong to the event loops of several threads.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from threading import get_ident
from typing import Final, TypeVar

from dibs.model.results import WaitResult
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Changes
from dibs.storage.protocol import Watch
from dibs.storage.sleeper import Sleeper

#: The number of latest steps of each queue whose ids are remembered.
REMEMBERED_STEPS: Final = 64


class RecentIds:
    """The ids of the latest steps of each queue. A token is the number of a step, as text."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, deque[tuple[int, tuple[str, ...]]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED_STEPS)
        )
        #: Tokens below this number are too old: steps after them passed without a call of `add`.
        self._oldest_token = 0

    def add(self, queue: str, step: int, ids: Iterable[str]) -> None:
        self._steps[queue].append((step, tuple(ids)))

    def forget_before(self, step: int) -> None:
        """Treat every token below `step` as too old from now on."""
        self._oldest_token = step

    def since(self, queue: str, token: str | None, ids: AbstractSet[str] | None) -> set[str] | None:
        """Return those of `ids` (None for all) that were added after a token; None if that is unknown."""
        if token is None:
            return set()
        if not token.isdecimal() or int(token) < self._oldest_token:
            return None  # the steps since the token are unknown, so the waiter must check
        steps = self._steps.get(queue)
        if not steps:
            return set()
        if len(steps) == REMEMBERED_STEPS and steps[0][0] > int(token):
            return None  # some steps since the token are forgotten, so the waiter must check
        found = {id for step, added in steps if step > int(token) for id in added}
        return found if ids is None else found & ids


K = TypeVar("K")


class Waiter(Sleeper):
    """One pending call of `wait`: its queues, its watch (work, events, ids or progress), and its sleep."""

    def __init__(self, watch: Watch, queues: Sequence[str], ids: Sequence[str]) -> None:
        super().__init__()
        self.watch = watch
        self.queues = queues
        self.ids = frozenset(ids)
        #: True if steps of the ids wake the waiter; False if steps of its queues do.
        self.by_id = watch == "ids" or (watch == "progress" and bool(ids))
        #: For a wait for ids: the ids that have ended since the wait began; None if they are unknown.
        self.ended: set[str] | None = set() if watch == "ids" else None
        #: For a wait for progress: the ids that have reported since the wait began; None if they are unknown.
        self.reported: set[str] | None = set() if watch == "progress" else None
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
        self._by_id: defaultdict[tuple[Watch, str, str], set[Waiter]] = defaultdict(set)
        self._ended = RecentIds()
        self._reported = RecentIds()
        #: The number of the latest step in which an id ended or reported progress.
        self._id_steps = 0

    def token(self, watch: Watch, queue: QueueIndex) -> str:
        """Return the token of the current state of a queue. A later wait passes it as `since`."""
        if watch == "work":
            return str(queue.work_version)
        return queue.log.end if watch == "events" else str(self._id_steps)

    def has_changed(self, waiter: Waiter, index: Index, since: Mapping[str, str]) -> bool:
        """Return whether a change after the tokens in `since` may concern the waiter."""
        queues = [index.find_queue(name) for name in waiter.queues]
        if waiter.watch == "work":
            return any(_has_work(queue, since.get(queue.name)) for queue in queues)
        if waiter.watch == "events":
            return any(queue.log.end != since.get(queue.name, queue.log.end) for queue in queues)
        tokens = [(name, since.get(name)) for name in waiter.queues]
        ended = _union(self._ended.since(name, token, waiter.ids) for name, token in tokens)
        if waiter.watch == "ids":
            waiter.ended = _or_none(waiter.ended, ended)
            return waiter.ended is None or bool(waiter.ended)
        ids = waiter.ids or None
        reported = _union(self._reported.since(name, token, ids) for name, token in tokens)
        waiter.reported = _or_none(waiter.reported, reported)
        return waiter.reported is None or ended is None or bool(waiter.reported or ended)

    def add(self, waiter: Waiter) -> None:
        for queue in waiter.queues:
            if waiter.by_id:
                for id in waiter.ids:
                    self._by_id[waiter.watch, queue, id].add(waiter)
            else:
                self._by_queue[waiter.watch, queue].add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, and delete the sets that become empty, so that they do not pile up."""
        for queue in waiter.queues:
            if waiter.by_id:
                for id in waiter.ids:
                    _discard(self._by_id, (waiter.watch, queue, id), waiter)
            else:
                _discard(self._by_queue, (waiter.watch, queue), waiter)

    def notify(self, step: Step) -> None:
        """Wake the waiters whose queues or ids a step has changed. Called after every step."""
        for queue, changes in step:
            name = queue.name
            if queue.work_version != changes.work_before:
                self._wake(self._by_queue.get(("work", name), ()))
            if changes.entries:
                self._wake(self._by_queue.get(("events", name), ()))
            if changes.ended or changes.reported:
                self._notify_ids(name, changes)

    def _notify_ids(self, queue: str, changes: Changes) -> None:
        self._id_steps += 1
        if changes.ended:
            self._ended.add(queue, self._id_steps, changes.ended)
        if changes.reported:
            self._reported.add(queue, self._id_steps, changes.reported)
            self._wake_reported(self._by_queue.get(("progress", queue), ()), changes.reported)
        if self._by_id:
            for id in changes.ended:
                self._wake_ended(queue, id)
            for id in changes.reported:
                self._wake_reported(self._by_id.get(("progress", queue, id), ()), [id])

    def wake_all(self) -> None:
        """Wake every waiter: the storage closes, or a manual clock moved."""
        for waiters in [*self._by_queue.values(), *self._by_id.values()]:
            for waiter in waiters:
                waiter.ended = waiter.reported = None
                waiter.wake()

    def wake_all_after_gap(self) -> None:
        """Wake every waiter after steps for which `notify` was not called.

        A later wait for ids with a token from before the gap also ends at once.
        """
        self._id_steps += 1
        self._ended.forget_before(self._id_steps)
        self._reported.forget_before(self._id_steps)
        self.wake_all()

    def _wake_ended(self, queue: str, id: str) -> None:
        for waiter in self._by_id.get(("ids", queue, id), ()):
            if waiter.ended is not None:
                waiter.ended.add(id)
            waiter.wake()
        self._wake(self._by_id.get(("progress", queue, id), ()))

    @staticmethod
    def _wake_reported(waiters: Iterable[Waiter], ids: Sequence[str]) -> None:
        for waiter in waiters:
            if waiter.reported is not None:
                waiter.reported.update(ids)
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
    reported = None if waiter.reported is None else frozenset(waiter.reported)
    return WaitResult(woken=woken, since=tokens, ended=ended, reported=reported)


def _or_none(one: set[str] | None, other: set[str] | None) -> set[str] | None:
    return None if one is None or other is None else one | other


def _union(sets: Iterable[set[str] | None]) -> set[str] | None:
    """Return the union of the sets; None if one of them is None."""
    found: set[str] | None = set()
    for one in sets:
        found = _or_none(found, one)
    return found


def _has_work(queue: QueueIndex, token: str | None) -> bool:
    if token is None:
        return queue.opens_at <= queue.now and queue.has_due()
    return str(queue.work_version) != token


def seconds_until_due(index: Index, waiter: Waiter) -> float | None:
    """Return the seconds from `index.now` until time alone may let a claim of the waiter's queues take more.

    Return None if it never does, and for every other wait than for work.
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
