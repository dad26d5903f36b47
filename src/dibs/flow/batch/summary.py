"""The summary of a batch, which is the result of its ticket and its progress."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct


class BatchSummary(Struct, frozen=True, kw_only=True):
    """The numbers of members of a batch, by their state."""

    members: int = 0
    """Number of members that were added, including missing ones."""
    completed: int = 0
    """Number of members that completed."""
    failed: int = 0
    """Number of members that failed."""
    cancelled: int = 0
    """Number of members that were cancelled."""
    lost: int = 0
    """Number of members that ended, and whose outcomes were not kept long enough to be counted."""
    missing: int = 0
    """Number of members whose enqueue was begun and never happened, because their producer was killed."""
    open: int = 0
    """Number of members that have not ended; 0 at the end of the batch."""
    producer_lost: bool = False
    """True if the batch was closed because its producer did not close it."""

    @property
    def has_failure(self) -> bool:
        """True if a member has ended without completing, or is missing."""
        return bool(self.failed or self.cancelled or self.lost or self.missing)

    @property
    def is_success(self) -> bool:
        """True if all members have completed, and their producer closed the batch."""
        return self.completed == self.members and not self.producer_lost


decode_summary: Final = msgspec.json.Decoder(BatchSummary).decode
