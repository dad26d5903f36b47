"""The Index: all queues of a memory or file storage, their clock, and the counter for seqs and fences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dibs.model.events import LogEvent
from dibs.storage.clock import JUMP
from dibs.storage.indexed.event_log import pack_entry
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Changes

#: The changes of one step (the run of one verb), for each queue that the step changed.
Step = list[tuple[QueueIndex, Changes]]
T = TypeVar("T")


class Index:
    """The data of a memory or file storage. It is not safe for threads: a storage locks it during a step."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueIndex] = {}
        #: The time in ms since the epoch; it never steps back.
        self.now = 0
        #: Ms by which `now` is ahead of the machine's clock (src/dibs/storage/clock.py).
        self.lead = 0
        #: us by which the numbers are ahead of `now`; `jump` raises it.
        self.ahead = 0
        #: The last number drawn for a seq, revision, fence or log entry.
        self.number = 0
        self._changed: list[QueueIndex] = []
        self._pending_events: dict[str, list[LogEvent]] = {}

    def queue(self, name: str) -> QueueIndex:
        """Return a queue for changes. Create it if it is unknown, and set its clock to `now` of the index."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueIndex(name, self._changed.append, self.next_number)
        if found.now < self.now:
            found.advance(self.now)
        return found

    def find_queue(self, name: str) -> QueueIndex:
        """Return a queue for reading. For an unknown name, return an empty queue that refuses changes."""
        return (
            self.queue(name) if name in self.queues else QueueIndex(name, _refuse_changes, self.next_number)
        )

    def next_number(self) -> int:
        """Return a number above every earlier one, and at least the current time in us (contract 1, Numbers).

        Seq, revision and fence share one counter, so that the index need not remember the last fence of a
        removed id.
        """
        number, least = self.number + 1, self.now * 1000 + self.ahead
        self.number = number if number > least else least  # noqa: FURB136 - max() costs four times as much
        return self.number

    @contextmanager
    def jump(self) -> Iterator[None]:
        """Let the numbers of a copy jump, in a block that stores them. Its original may have drawn more.

        If the block raises, they stay as they are (contract 1, Numbers after a loss).
        """
        self.ahead += JUMP
        try:
            yield
        except BaseException:
            self.ahead -= JUMP
            raise

    def log_event(self, queue: QueueIndex, event: LogEvent) -> None:
        pending = self._pending_events.get(queue.name)
        if pending is None:
            self._pending_events[queue.name] = [event]
        else:
            pending.append(event)

    def run_step(self, verb: Callable[[Index], T]) -> tuple[T, Step]:
        """Run a verb as one step. Return its result and its changes, or undo the changes if it raises."""
        number = self.number
        try:
            return verb(self), self.end_step()
        except BaseException:
            self._pending_events = {}
            self.undo(self._collect_changes(), number)
            raise

    def end_step(self) -> Step:
        """End the current step: append its pending events to the logs, and return all its changes."""
        if self._pending_events:
            for name, events in self._pending_events.items():
                self._append_entry(self.queues[name], events)
            self._pending_events = {}
        return self._collect_changes()

    def _collect_changes(self) -> Step:
        if not self._changed:
            return []
        step = [(queue, queue.changes) for queue in self._changed if queue.changes is not None]
        for queue, _ in step:
            queue.changes = None
        self._changed.clear()
        return step

    def _append_entry(self, queue: QueueIndex, events: list[LogEvent]) -> None:
        queue.put_entry(pack_entry(self.next_number(), self.now, events))
        if queue.log.size > queue.settings.log_bytes:
            excess = queue.log.excess(0, queue.settings.log_bytes)
            if excess:
                queue.put_trim(excess[-1].number)

    def undo(self, step: Step, number: int) -> None:
        """Undo a step whose verb failed or whose commit could not be written.

        `number` is the value of `self.number` before the step.
        """
        for queue, changes in reversed(step):
            queue.undo(changes)
        self._collect_changes()
        for queue, changes in step:
            queue.used = changes.used_before
        self.number = number


def _refuse_changes(queue: QueueIndex) -> None:
    raise AssertionError(
        f"bug in dibs: a verb changed queue {queue.name!r}, which find_queue() returned for reading"
    )
