"""Who waits for what in one place, and who is woken by a step. Waiters may sit on several loops."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from dibs.model.results import WaitResult
from dibs.storage.indexed.index import Index, Step
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.wait import Waiter
from dibs.storage.protocol import Watch

#: How many of the latest steps with an end are remembered, for a wait that begins a little late.
REMEMBERED = 64


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
            return str(queue.work)
        return queue.log.end if watch == "events" else str(self._ended)

    def moved(self, waiter: Waiter, index: Index, since: Mapping[str, str]) -> bool:
        """Tell whether something happened that the waiter has not seen."""
        queues = [index.look(name) for name in waiter.queues]
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

    def join(self, waiter: Waiter) -> None:
        """Begin a wait."""
        for key in self._keys(waiter):
            key.add(waiter)

    def leave(self, waiter: Waiter) -> None:
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

    def missed(self) -> None:
        """End every wait, and let those to come look: steps happened that nobody told of one by one."""
        self._ended += 1
        self._missed = self._ended
        self.wake_all()

    @staticmethod
    def _wake(waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            waiter.wake()


def wake_of(wakeups: Wakeups, index: Index, waiter: Waiter, *, woken: bool) -> WaitResult:
    """Return the answer to a wait, as things stand."""
    tokens = {name: wakeups.token(waiter.watch, index.look(name)) for name in waiter.queues}
    return WaitResult(woken=woken, since=tokens)


def _has_work(queue: QueueIndex, token: str | None) -> bool:
    return bool(queue.due) if token is None else str(queue.work) != token
