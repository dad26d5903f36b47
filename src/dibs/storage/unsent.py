"""A mark on the CancelledError of a call that was cancelled before it was sent.

A client cancels a call whose deadline has passed. A mark means that the call cannot take effect, and gives
the reason of the delay. Without a mark, the client assumes that the call was sent.
"""

from __future__ import annotations

import asyncio


def mark_unsent(error: asyncio.CancelledError, waits_for: str) -> None:
    """Mark the error of a call that was not sent, and that cannot take effect any more.

    `waits_for` ends the sentence "it waited for ...".
    """
    error.waits_for = waits_for  # type: ignore[attr-defined]


def mark_sent(error: asyncio.CancelledError) -> None:
    """Remove the mark of `mark_unsent` from the error of a call that had sent an earlier attempt."""
    error.waits_for = None  # type: ignore[attr-defined]


def unsent_wait(error: BaseException | None) -> str | None:
    """Return `waits_for` of a marked error; None if its call may have been sent."""
    waits_for: str | None = getattr(error, "waits_for", None)
    return waits_for
