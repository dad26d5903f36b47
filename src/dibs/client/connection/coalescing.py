"""Single calls that arrive together travel together: one flush in flight, the rest forms the next batch."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from typing import Final, Generic, NamedTuple, TypeVar

from dibs.errors import BatchRefused, NotRunning, OutcomeUnknown, Refused

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: The most one batch may hold (contract 3, enqueue), and the most bytes: a round trip stays short.
MOST_ITEMS: Final = 1000
MOST_BYTES: Final = 4 * 1024 * 1024
_ENDED: Final = "the event loop ended while this was under way"


class PendingCall(NamedTuple, Generic[Item, Answer]):
    """One call that waits for its own answer."""

    item: Item
    size: int
    answer: asyncio.Future[Answer]


class Coalescer(Generic[Item, Answer]):
    """Sends what was added while the last batch was under way as the next one.

    Whoever adds has checked the item, and is held until it is answered: that is the back-pressure. A
    caller who is cancelled or refused never touches the others, and each gets an exception of its own.
    """

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        size: Callable[[Item], int] = lambda item: 0,  # noqa: ARG005 - most items are small
        *,
        reads: bool = False,
    ) -> None:
        self._send = send
        self._size = size
        self._reads = reads
        #: Calls come singly: the next is sent by its own caller, and saves a task and two turns of the loop.
        self._singly = False
        self._waiting: deque[PendingCall[Item, Answer]] = deque()
        self._flushing: asyncio.Future[None] | None = None

    async def add(self, item: Item) -> Answer:
        """Send the item with its neighbours and return its answer."""
        if self._singly and self._flushing is None:
            return await self._add_singly(item)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingCall(item, self._size(item), answer))
        if self._flushing is None:
            self._begin()
        return await answer

    async def _add_singly(self, item: Item) -> Answer:
        self._flushing = over = asyncio.get_running_loop().create_future()
        try:
            (answer,) = await self._send([item])
        finally:
            over.set_result(None)
            self._flushing, self._singly = None, not self._waiting
            if self._waiting:
                self._begin()
        return answer

    def _begin(self) -> None:
        # A context of its own: the batch belongs to all callers, not to the one who came first.
        self._flushing = asyncio.create_task(self._flush_all(), context=Context())

    async def drain(self) -> None:
        """Return when everything added so far has been answered."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush_all(self) -> None:
        try:
            while batch := self._take():
                # Only what reads: given up in the air, a write might take effect after the next one.
                self._singly = self._reads and len(batch) == 1
                await self._flush(batch)
        finally:
            self._flushing = None
            # Nobody is left here unless the loop is ending, and then nobody may be left waiting.
            _refuse(self._waiting, NotRunning(_ENDED))
            self._waiting.clear()

    def _take(self) -> list[PendingCall[Item, Answer]]:
        """Return the next batch within its bounds, without those who no longer wait."""
        batch: list[PendingCall[Item, Answer]] = []
        room = MOST_BYTES
        while self._waiting and len(batch) < MOST_ITEMS:
            if self._waiting[0].answer.done():
                self._waiting.popleft()
                continue
            room -= self._waiting[0].size
            if batch and room < 0:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _flush(self, batch: list[PendingCall[Item, Answer]]) -> None:
        try:
            answers = await self._send([caller.item for caller in batch])
        except BatchRefused as error:
            await self._flush_others(batch, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            _refuse(batch, error)
        except BaseException:
            _refuse(batch, OutcomeUnknown(_ENDED))
            raise
        else:
            for caller, answer in zip(batch, answers, strict=True):
                if not caller.answer.done():
                    caller.answer.set_result(answer)

    async def _flush_others(self, batch: list[PendingCall[Item, Answer]], error: BatchRefused) -> None:
        """Nothing was written: tell those who are at fault, and send the others without them."""
        at_fault = {e.index: e for e in error.exceptions if isinstance(e, Refused) and e.index is not None}
        rest = [caller for index, caller in enumerate(batch) if index not in at_fault]
        if len(rest) == len(batch):
            _refuse(batch, error)
            return
        for index, refused in at_fault.items():
            _refuse([batch[index]], refused)
        if rest:
            await self._flush(rest)


def _refuse(batch: Iterable[PendingCall[Item, Answer]], error: Exception) -> None:
    for caller in batch:
        if not caller.answer.done():
            # Raising adds to an exception (its traceback, its context), so nobody may share one.
            caller.answer.set_exception(_own(error))


def _own(error: Exception) -> Exception:
    try:
        own = copy.copy(error)
    except Exception:  # noqa: BLE001 - a foreign class whose arguments are not its `args`
        own = OutcomeUnknown(f"{type(error).__name__}: {error}")
    own.__cause__ = error.__cause__ or error
    return own
