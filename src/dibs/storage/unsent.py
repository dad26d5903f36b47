"""A mark on the CancelledError of a call that is cancelled before it has sent anything.

A client cancels a call whose deadline has passed. By the mark it knows that nothing was written, and what the
call waited for. A storage need not set it: without the mark the client assumes that the call was sent.
"""

from __future__ import annotations

import asyncio


def mark_unsent(error: asyncio.CancelledError, waits_for: str) -> None:
    """Note on a CancelledError that its call wrote nothing, and will write nothing, and what it waited for.

    `waits_for` ends the sentence "it waited for ...".
    """
    error.waits_for = waits_for  # type: ignore[attr-defined]


def mark_sent(error: asyncio.CancelledError) -> None:
    """Remove the mark of `mark_unsent` from the error of a call that had sent an earlier attempt."""
    error.waits_for = None  # type: ignore[attr-defined]


def unsent_wait(error: BaseException | None) -> str | None:
    """Return what a cancelled call waited for; None if it may have been sent."""
    waits_for: str | None = getattr(error, "waits_for", None)
    return waits_for
