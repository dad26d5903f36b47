"""The tokens with which the callers of claims would wait for work."""

from __future__ import annotations

from attrs import frozen

from dibs.storage.protocol import Storage


@frozen
class StandingToken:
    """The token of the newest claim in a queue, if that claim left no admitted job."""

    token: str
    next_due: int | None
    #: The handle of the claim. After a restart it is another one: a restart ends all waits.
    storage: Storage

    def lasts(self, handles: list[Storage], now: int) -> bool:
        """Return whether the caller of the claim still waits at `now`."""
        is_open = any(handle is self.storage for handle in handles)
        return is_open and (self.next_due is None or now < self.next_due)
