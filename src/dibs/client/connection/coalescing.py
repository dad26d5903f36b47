"""Coalescing of single calls: concurrent enqueues, gets and settles share batches.

`CoalescedCalls` has the three verbs and keeps one `Coalescer` per queue and verb. A coalescer has one batch
in flight; the calls that arrive during that time form the next batch.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from attrs import define, field

from dibs.errors import BatchRefused, NotRunning, OutcomeUnknown, Refused
from dibs.model.check_jobs import check_enqueue_queue, check_request
from dibs.model.job import NewJob, Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.protocol import Storage

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: Most items of a batch: a storage accepts no more in one call (contract 3, enqueue).
MAX_BATCH_ITEMS: Final = 1000
#: Most bytes of a batch, so that a round trip stays short.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
#: Number of coalescers of one verb at which the idle ones are removed. Each takes about 800 bytes.
MAX_COALESCERS: Final = 1000
_NOT_SENT: Final = "the event loop ended before this call was sent; repeat the call on a running loop"
#: Errors of one item for which a storage refuses or cannot encode a whole batch. It has written no item.
_OF_ONE_ITEM: Final = (Refused, TypeError, ValueError, OverflowError, RecursionError)
#: Errors of a reply that cannot be decoded. They are ValueErrors, too.
_UNREADABLE_REPLY: Final = (msgspec.DecodeError, UnicodeDecodeError)
_NO_REPLY: Final = "the event loop ended before the reply arrived; the call may or may not have happened"


class PendingCall(NamedTuple, Generic[Item, Answer]):
    """A call whose item waits for the next batch, or is in flight and waits for its answer."""

    item: Item
    #: Bytes that the item adds to a batch.
    size: int
    answer: asyncio.Future[Answer]


def _zero_size(_item: object) -> int:
    return 0


@define(eq=False)
class Coalescer(Generic[Item, Answer]):
    """A sender of batches. Items that are added while a batch is in flight form the next batch.

    Check an item before `add`, because one bad item delays its whole batch. `add` returns when the item is
    answered, so a caller cannot send faster than the storage answers. A cancelled or refused call does not
    affect the other calls of its batch, and each call gets a separate exception object.
    """

    _send: Callable[[list[Item]], Awaitable[Sequence[Answer]]]
    #: Returns the size of an item in bytes. The default counts 0, for items that are always small.
    _size: Callable[[Item], int] = field(default=_zero_size)
    #: True if `send` changes no stored state, as for gets.
    _read_only: bool = field(default=False, kw_only=True)
    #: True after a read-only batch of one item: the next caller sends its item itself. This saves a task and
    #: two iterations of the event loop.
    _send_inline: bool = field(default=False, init=False)
    _waiting: deque[PendingCall[Item, Answer]] = field(factory=deque, init=False)
    _flushing: asyncio.Future[None] | None = field(default=None, init=False)

    async def add(self, item: Item) -> Answer:
        """Send the item in the next batch and return its answer."""
        if self._send_inline and self._flushing is None:
            return await self._add_inline(item)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingCall(item, self._size(item), answer))
        if self._flushing is None:
            self._start_flush()
        return await answer

    async def _add_inline(self, item: Item) -> Answer:
        self._flushing = flushed = asyncio.get_running_loop().create_future()
        try:
            (answer,) = await self._send([item])
        finally:
            flushed.set_result(None)
            self._flushing, self._send_inline = None, not self._waiting
            if self._waiting:
                self._start_flush()
        return answer

    def _start_flush(self) -> None:
        # An empty context, because the batch belongs to all of its callers and not to the first one alone.
        self._flushing = asyncio.create_task(self._flush_all(), context=Context())

    @property
    def is_idle(self) -> bool:
        """True if no item waits or is in flight."""
        return self._flushing is None and not self._waiting

    async def drain(self) -> None:
        """Wait until every item added so far is answered. Called before the storage closes."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush_all(self) -> None:
        try:
            while batch := self._take_batch():
                # Reads only: a cancelled caller abandons its inline call, and an abandoned write might take
                # effect after the next write.
                self._send_inline = self._read_only and len(batch) == 1
                await self._flush(batch)
        finally:
            self._flushing = None
            # Calls are left here only if the event loop is ending. Their callers must not wait for ever.
            _fail_calls(self._waiting, NotRunning(_NOT_SENT))
            self._waiting.clear()

    def _take_batch(self) -> list[PendingCall[Item, Answer]]:
        """Remove and return the next batch within the limits; drop calls whose callers were cancelled."""
        batch: list[PendingCall[Item, Answer]] = []
        bytes_left = MAX_BATCH_BYTES
        while self._waiting and len(batch) < MAX_BATCH_ITEMS:
            if self._waiting[0].answer.done():
                self._waiting.popleft()
                continue
            bytes_left -= self._waiting[0].size
            if batch and bytes_left < 0:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _flush(self, batch: list[PendingCall[Item, Answer]]) -> None:
        try:
            answers = await self._send([call.item for call in batch])
        except BatchRefused as error:
            await self._flush_without_refused(batch, error)
        except _UNREADABLE_REPLY as error:
            # The storage has answered, so the batch may be written: sent again, its items would be doubled.
            _fail_calls(batch, error)
        except _OF_ONE_ITEM as error:
            await self._flush_one_by_one(batch, error)
        except Exception as error:  # noqa: BLE001 - each caller must get the error
            _fail_calls(batch, error)
        except BaseException:
            _fail_calls(batch, OutcomeUnknown(_NO_REPLY))
            raise
        else:
            for call, answer in zip(batch, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)

    async def _flush_one_by_one(self, batch: list[PendingCall[Item, Answer]], error: Exception) -> None:
        """Send each item alone, so that the bad item of one caller fails no other call."""
        if len(batch) == 1:
            _fail_calls(batch, error)
            return
        for call in batch:
            await self._flush([call])

    async def _flush_without_refused(
        self, batch: list[PendingCall[Item, Answer]], error: BatchRefused
    ) -> None:
        """Fail the calls that `error` refuses, and send the rest again: the storage wrote no item."""
        refused = {e.index: e for e in error.exceptions if isinstance(e, Refused) and e.index is not None}
        rest = [call for index, call in enumerate(batch) if index not in refused]
        if len(rest) == len(batch):
            _fail_calls(batch, error)
            return
        for index, item_error in refused.items():
            _fail_calls([batch[index]], item_error)
        if rest:
            await self._flush(rest)


def _fail_calls(batch: Iterable[PendingCall[Item, Answer]], error: Exception) -> None:
    for call in batch:
        if not call.answer.done():
            # Raising changes an exception (its traceback and context), so callers must not share one.
            call.answer.set_exception(copy_error(error))


def copy_error(error: Exception) -> Exception:
    """Return a copy of an error for one of several callers, with the error as its cause."""
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001 - copying fails for a class whose __init__ does not accept its `args`
        copied = OutcomeUnknown(f"{type(error).__name__}: {error}")
    copied.__cause__ = error.__cause__ or error
    return copied


@define(eq=False)
class CoalescedCalls:
    """The verbs of an open storage that take one item per call and coalesce concurrent calls."""

    _storage: Storage
    #: One coalescer per queue name, for each verb.
    _enqueues: dict[str, Coalescer[EnqueueRequest, EnqueueResult]] = field(factory=dict, init=False)
    _gets: dict[str, Coalescer[str, Slot]] = field(factory=dict, init=False)
    _settles: dict[str, Coalescer[Settlement, SettleResult]] = field(factory=dict, init=False)

    async def enqueue(self, queue: str, request: EnqueueRequest) -> EnqueueResult:
        """Check one request and enqueue it. Raises Refused, OutcomeUnknown, StorageError."""
        check_enqueue_queue(queue, storage_limits(self._storage))
        check_request(request, storage_limits(self._storage))
        coalescer = self._enqueues.get(queue)
        if coalescer is None:
            _drop_idle(self._enqueues)
            coalescer = self._enqueues[queue] = Coalescer(
                partial(self._storage.enqueue, queue), _request_size
            )
        return await coalescer.add(request)

    async def get(self, queue: str, id: str) -> Slot:
        """Return everything stored for one id: current job, blocked successor and outcome."""
        coalescer = self._gets.get(queue)
        if coalescer is None:
            _drop_idle(self._gets)
            coalescer = self._gets[queue] = Coalescer(partial(self._storage.get, queue), read_only=True)
        return await coalescer.add(id)

    async def settle(self, queue: str, settlement: Settlement) -> SettleResult:
        """Store how one run ended: completed, failed, retried, ... Raises OutcomeUnknown, StorageError."""
        coalescer = self._settles.get(queue)
        if coalescer is None:
            _drop_idle(self._settles)
            coalescer = self._settles[queue] = Coalescer(
                partial(self._storage.settle, queue), _settlement_size
            )
        return await coalescer.add(settlement)

    async def drain(self) -> None:
        """Wait until all calls are answered. Called before the storage closes."""
        drains = [coalescer.drain() for coalescer in self._enqueues.values()]
        drains += [coalescer.drain() for coalescer in self._gets.values()]
        drains += [coalescer.drain() for coalescer in self._settles.values()]
        await asyncio.gather(*drains)


def _drop_idle(coalescers: dict[str, Coalescer[Any, Any]]) -> None:
    """Remove the idle coalescers if there are MAX_COALESCERS, so that a name used once costs no memory."""
    if len(coalescers) >= MAX_COALESCERS:
        for queue in [queue for queue, coalescer in coalescers.items() if coalescer.is_idle]:
            del coalescers[queue]


def storage_limits(storage: Storage) -> Limits:
    """Return the limits that the storage was opened with, or the limits of the contract."""
    limits = getattr(storage, "limits", LIMITS)
    return limits if isinstance(limits, Limits) else LIMITS


def job_size(job: NewJob) -> int:
    """Return the bytes that a job adds to a batch: payload and attributes."""
    data = job.data
    return len(data.payload) + (sum(map(len, data.attributes.values())) if data.attributes else 0)


def _request_size(request: EnqueueRequest) -> int:
    return job_size(request.job)


def _settlement_size(settlement: Settlement) -> int:
    action = settlement.action
    return len(action.result) if isinstance(action, Complete) and action.result else 0
