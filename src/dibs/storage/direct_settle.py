"""Optional method of a storage: a settlement with a claim that its caller sends without a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from dibs.model.requests import Settlement
from dibs.model.results import SettleAndClaimResult
from dibs.storage.protocol import Storage

#: Called once with the result of a direct settle_and_claim, with its error, or with None if the server surely
#: did not run it.
OnSettled = Callable[[SettleAndClaimResult | Exception | None], None]


class DirectSettle(Protocol):
    """The optional method of a storage that can send a settlement and a claim at once."""

    def start_settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, on_end: OnSettled
    ) -> bool:
        """Send a settle_and_claim now, and call `on_end` in the event loop when it has ended.

        Return False, and send nothing, if this takes more than a write to an open connection, or if an
        argument is refused; the caller then uses `settle_and_claim`. The effect is that of
        `settle_and_claim`. Call it on the event loop of the storage.
        """
        ...


def with_direct_settle(storage: Storage) -> DirectSettle | None:
    """Return the storage if it can send a settlement and a claim at once; None otherwise."""
    # Looked up in the class, as the methods of dibs.storage.direct_enqueue.
    return cast("DirectSettle", storage) if hasattr(type(storage), "start_settle_and_claim") else None
