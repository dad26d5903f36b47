"""What an index keeps beside slots: leases and request keys."""

from __future__ import annotations

from msgspec import Struct

from dibs.model.results import EnqueueStatus, FoundState


class Lease(Struct, frozen=True, gc=False, array_like=True):
    """A lease on one queue. Alive while now < expires_at, unless it was dropped."""

    holder: str
    expires_at: int
    dropped: bool = False

    def alive(self, now: int) -> bool:
        """Tell whether it may be renewed and claimed under."""
        return now < self.expires_at and not self.dropped


class RequestKey(Struct, frozen=True, gc=False, array_like=True):
    """What an enqueue with a request_key was answered."""

    status: EnqueueStatus
    found: FoundState
    first: int
    revision: int
    expires_at: int
