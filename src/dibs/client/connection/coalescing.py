"""Coalescing of single calls: a `Coalescer` sends concurrent calls in batches, one batch at a time.

The calls that arrive while a batch is in flight form the next batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Final, Generic

import msgspec
from attrs import define, field

from dibs.client.connection.pending_calls import Answer, Item, PendingCall, fail_calls
from dibs.errors import BatchRefused, NotRunning, OutcomeUnknown, Refused

#: Most items of a batch: a storage accepts no more in one call (contract 3, enqueue).
MAX_BATCH_ITEMS: Final = 1000
#: Most bytes of a batch, so that a round trip stays short.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
_NOT_SENT: Final = "the event loop ended before this call was sent; repeat the call on a running loop"
#: Errors of one item for which a storage refuses or cannot encode a whole batch. It has written no item.
_OF_ONE_ITEM: Final = (Refused, TypeError, ValueError, OverflowError, RecursionError)
#: Errors of a reply that cannot be decoded. They are ValueErrors, too.
_UNREADABLE_REPLY: Final = (msgspec.DecodeError, UnicodeDecodeError)
_NO_REPLY: Final = "the event loop ended before the reply arrived; the call may or may not have happened"


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
            fail_calls(self._waiting, NotRunning(_NOT_SENT))
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
            fail_calls(batch, error)
        except _OF_ONE_ITEM as error:
            await self._flush_one_by_one(batch, error)
        except Exception as error:  # noqa: BLE001 - each caller must get the error
            fail_calls(batch, error)
        except BaseException:
            fail_calls(batch, OutcomeUnknown(_NO_REPLY))
            raise
        else:
            for call, answer in zip(batch, answers, strict=True):
                if not call.answer.done():
                    call.answer.set_result(answer)

    async def _flush_one_by_one(self, batch: list[PendingCall[Item, Answer]], error: Exception) -> None:
        """Send each item alone, so that the bad item of one caller fails no other call."""
        if len(batch) == 1:
            fail_calls(batch, error)
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
            fail_calls(batch, error)
            return
        for index, item_error in refused.items():
            fail_calls([batch[index]], item_error)
        if rest:
            await self._flush(rest)
