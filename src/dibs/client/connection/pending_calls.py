"""Calls that wait for their batch or for its answer, and the errors that they get."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from dibs.errors import OutcomeUnknown

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class PendingCall(NamedTuple, Generic[Item, Answer]):
    """A call whose item waits for the next batch, or is in flight and waits for its answer."""

    item: Item
    #: Bytes that the item adds to a batch.
    size: int
    answer: asyncio.Future[Answer]


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
