"""Calls that wait for their batch or for its answer, their batches, deadlines and errors."""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from dibs.errors import OutcomeUnknown

Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: Most items of a batch: a storage accepts no more in one call (contract 3, enqueue).
MAX_BATCH_ITEMS: Final = 1000
#: Most bytes of a batch, so that a round trip stays short.
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024


class PendingCall(NamedTuple, Generic[Item, Answer]):
    """A call whose item waits for the next batch, or is in flight and waits for its answer."""

    item: Item
    #: Bytes that the item adds to a batch.
    size: int
    answer: asyncio.Future[Answer]
    #: The deadline of the call, on the clock of the event loop; `inf` if it has none.
    expires: float = math.inf


def take_batch(waiting: deque[PendingCall[Item, Answer]]) -> list[PendingCall[Item, Answer]]:
    """Remove and return the next batch within the limits; drop calls whose callers were cancelled."""
    batch: list[PendingCall[Item, Answer]] = []
    bytes_left = MAX_BATCH_BYTES
    while waiting and len(batch) < MAX_BATCH_ITEMS:
        if waiting[0].answer.done():
            waiting.popleft()
            continue
        bytes_left -= waiting[0].size
        if batch and bytes_left < 0:
            break
        batch.append(waiting.popleft())
    return batch


def expire_waiting(
    waiting: deque[PendingCall[Item, Answer]], now: float, make_error: Callable[[], Exception]
) -> float:
    """Remove the calls whose deadlines have passed, and raise an error in each of them.

    The calls are in the order of their deadlines. Return the next deadline, or `inf`. At most MAX_BATCH_ITEMS
    calls are removed, so that the event loop is not stalled; the next deadline is then in the past.
    """
    for _ in range(MAX_BATCH_ITEMS):
        if not waiting or waiting[0].expires > now:
            break
        call = waiting.popleft()
        if not call.answer.done():
            call.answer.set_exception(make_error())
    return waiting[0].expires if waiting else math.inf


def move_answers(
    batch: list[PendingCall[Item, Answer]],
) -> dict[asyncio.Future[Answer], asyncio.Future[Answer]]:
    """Replace the futures in a batch by new ones, and return the new ones by the former ones."""
    moved = {}
    for index, call in enumerate(batch):
        if not call.answer.done() or call.answer.cancelled():
            moved[call.answer] = call.answer.get_loop().create_future()
            batch[index] = call._replace(answer=moved[call.answer])
    return moved


def fail_calls(batch: Iterable[PendingCall[Item, Answer]], error: Exception) -> None:
    """Raise the error in each of the calls that is not answered yet."""
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
