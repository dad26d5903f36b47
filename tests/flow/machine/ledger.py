"""The ledger: each end of each job, as the answers of the storage show it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, Self

import msgspec
from attrs import define, field, frozen
from msgspec.structs import replace

from dibs.model.requests import Cancelled, Complete, Fail, SettleAction, Settlement
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.testing.clock import ManualClock

_KINDS: Final[dict[Any, str]] = {Complete: "completed", Fail: "failed", Cancelled: "cancelled"}


@frozen
class End:
    """One end of a job: "completed", "failed" or "cancelled", and the result of a completed one."""

    kind: str
    result: Any = None
    #: The position among all ends and starts.
    order: int = 0


@define(eq=False)
class Ledger:
    """The ends of each job, by its label: an attribute that the flow copies from its spec."""

    labels: dict[tuple[str, str], str] = field(factory=dict)
    ids: dict[str, list[tuple[str, str]]] = field(factory=lambda: defaultdict(list))
    ends: dict[str, list[End]] = field(factory=lambda: defaultdict(list))
    #: Ended and retried runs.
    runs: Counter[str] = field(factory=Counter)
    #: Enqueues that made a job.
    enqueues: Counter[str] = field(factory=Counter)
    #: Returns of failed jobs to their queues.
    retries: Counter[str] = field(factory=Counter)
    #: The order of the latest enqueue or return of each job.
    started: dict[str, int] = field(factory=dict)
    #: The flows whose evaluation completed after their end: none of their nodes may start any more.
    closed: set[str] = field(factory=set)
    _order: Iterator[int] = field(factory=lambda: count(1))

    def learn(self, queue: str, id: str, attributes: Any) -> None:
        """Learn the label of an id."""
        raw = attributes.get("label")
        if raw is not None and (queue, id) not in self.labels:
            label = self.labels[queue, id] = msgspec.json.decode(raw, type=str)
            self.ids[label].append((queue, id))

    def end(self, queue: str, id: str, kind: str, result: bytes | None = None) -> None:
        label = self.labels.get((queue, id))
        if label is not None:
            value = None if result is None else msgspec.json.decode(result)
            self.ends[label].append(End(kind, value, next(self._order)))
            self.runs[label] += 1

    def start(self, label: str, by: Counter[str]) -> None:
        """Count an enqueue or a return of a job."""
        by[label] += 1
        self.started[label] = next(self._order)
        self.closed.discard(label)

    def kinds(self, label: str) -> list[str]:
        """Return the kinds of the ends, oldest first."""
        return [end.kind for end in self.ends.get(label, ())]

    def is_live(self, label: str) -> bool:
        return self.enqueues[label] + self.retries[label] > len(self.ends.get(label, ()))


@define(eq=False)
class Recorder:
    """A storage on a manual clock that writes the ledger. The calls of a test come one at a time."""

    clock: ManualClock
    ledger: Ledger = field(factory=Ledger)
    #: True to drop the wake-ups that follow the ends of nodes.
    drops_wake_ups: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clock.silent_storage, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the storage open: several apps share it."""

    async def enqueue(self, queue: str, requests: Sequence[Any], **named: Any) -> Any:
        for request in requests:
            self.ledger.learn(queue, request.job.id, request.job.data.attributes)
        answers = await self.clock.silent_storage.enqueue(queue, requests, **named)
        for request, answer in zip(requests, answers, strict=True):
            label = self.ledger.labels.get((queue, request.job.id))
            if label is not None and answer.status == "queued" and not answer.repeated:
                self.ledger.start(label, self.ledger.enqueues)
        return answers

    async def settle(self, queue: str, settlements: Sequence[Settlement], **named: Any) -> Any:
        sent = [replace(one, action=self._strip(one.action)) for one in settlements]
        answers = await self.clock.silent_storage.settle(queue, sent, **named)
        for one, answer in zip(sent, answers, strict=True):
            if answer.status == "done":
                result = one.action.result if isinstance(one.action, Complete) else None
                self.ledger.end(queue, one.id, _KINDS[type(one.action)], result)
                if queue == EVALUATIONS:
                    self._close(one.id)
            elif answer.status == "cancelled":
                self.ledger.end(queue, one.id, "cancelled")
            elif answer.status == "returned" and (queue, one.id) in self.ledger.labels:
                self.ledger.runs[self.ledger.labels[queue, one.id]] += 1
        return answers

    async def finish(self, queue: str, id: str, end: Any, revision: int, **named: Any) -> Any:
        storage = self.clock.silent_storage
        (before,) = await storage.get(queue, [id])
        answer = await storage.finish(queue, id, self._strip(end), revision, **named)
        if answer == "done" and before.current is not None and before.current.run is not None:
            result = end.result if isinstance(end, Complete) else None
            self.ledger.end(queue, id, _KINDS[type(end)], result)
        return answer

    async def cancel(self, queue: str, ids: Sequence[str], **named: Any) -> Any:
        # An id with an outcome is answered with its kind, which may be "cancelled", too.
        before = await self.clock.silent_storage.get(queue, ids)
        answers = await self.clock.silent_storage.cancel(queue, ids, **named)
        for id, answer, slot in zip(ids, answers, before, strict=True):
            if answer == "cancelled" and slot.current is not None and slot.successor is None:
                self.ledger.end(queue, id, "cancelled")
        return answers

    async def reap(self, queue: str, limit: int, **named: Any) -> Any:
        answers = await self.clock.silent_storage.reap(queue, limit, **named)
        for one in answers:
            if one.kind == "cancelled":
                self.ledger.end(queue, one.id, "cancelled")
        return answers

    async def retry_failed(self, queue: str, ids: Sequence[str], **named: Any) -> Any:
        answers = await self.clock.silent_storage.retry_failed(queue, ids, **named)
        for id, answer in zip(ids, answers, strict=True):
            if answer == "queued" and (queue, id) in self.ledger.labels:
                self.ledger.start(self.ledger.labels[queue, id], self.ledger.retries)
        return answers

    def _close(self, id: str) -> None:
        label = self.ledger.labels.get((FLOWS, id))
        if label is not None and not self.ledger.is_live(label):
            self.ledger.closed.add(label)

    def _strip(self, action: SettleAction) -> Any:
        """Return the action without wake-ups, if they are dropped."""
        if not self.drops_wake_ups or not isinstance(action, Complete | Fail):
            return action
        return replace(action, then=tuple(one for one in action.then if one.queue != EVALUATIONS))
