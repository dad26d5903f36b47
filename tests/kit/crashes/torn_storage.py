"""A file storage with a planted fault: it settles in two commits, and a crash can happen between them."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.model.requests import Settlement
from dibs.model.results import SettleResult
from dibs.storage.file import FileStorage
from dibs.storage.protocol import Clock


class TornStorage(FileStorage):
    """A file storage that reports progress in a separate commit before each settlement."""

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        for one in settlements:
            await self.report(queue, one.id, one.fence, b"0", now=now)
        return await super().settle(queue, settlements, now=now)


def open_torn(folder: str, location: str, clock: Clock) -> TornStorage:
    return TornStorage(f"{folder}/{location}", clock=clock)
