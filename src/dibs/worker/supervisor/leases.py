"""The leases of one supervisor: granted, renewed from outside the processes that run handlers, dropped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from dibs.errors import NotRunning
from dibs.model.results import RenewResult
from dibs.storage.protocol import Storage

logger = logging.getLogger("dibs.worker")

#: Jobs that one step of a drop releases.
STEP: Final = 1000
#: Seconds between attempts while the storage does not answer, doubling.
RETRY: Final = (0.1, 2.0)


class LeaseKeeper:
    """Keeps leases alive over all queues of the supervisor, and says when one is lost.

    A lease counts as lost when the storage says so, or when its time, measured here from before the last
    renewal that was answered, is over: by then others may hold its jobs.
    """

    def __init__(
        self,
        storage: Storage,
        queues: Sequence[str],
        *,
        holder: str,
        lease: float,
        every: float,
        lost: Callable[[str], None],
        asked: Callable[[str, RenewResult], None],
    ) -> None:
        self._storage = storage
        self._queues = tuple(queues)
        self._holder = holder
        self._seconds = lease
        self._every = every
        self._lost = lost
        self._asked = asked
        #: Lease -> when it ends if it is not renewed, by time.monotonic().
        self._ends: dict[str, float] = {}

    @property
    def leases(self) -> tuple[str, ...]:
        return tuple(self._ends)

    async def grant(self) -> str:
        """Take a new lease. Raises StorageError, OutcomeUnknown; nobody then holds anything under it."""
        asked_at = time.monotonic()
        granted = await self._storage.grant(self._queues, self._ttl, self._holder)
        self._ends[granted.lease] = asked_at + self._seconds
        return granted.lease

    async def grant_patiently(self) -> str:
        """Take a new lease, however long the storage cannot be reached."""
        pause = RETRY[0]
        while True:
            try:
                return await self.grant()
            except NotRunning:
                raise
            except Exception as error:  # noqa: BLE001 - a fault in a storage, too: without a lease nothing works
                logger.warning("no lease yet, trying again: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY[1])

    async def beat(self) -> None:
        """Renew all leases every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            for lease in self.leases:
                await self._renew(lease)

    async def _renew(self, lease: str) -> None:
        pause = RETRY[0]
        while lease in self._ends:
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, self._ends[lease] - asked_at)):
                    answers = await self._storage.renew(self._queues, lease, self._ttl)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the heart goes on while it can
                if time.monotonic() + pause >= self._ends.get(lease, 0.0):
                    self.lose(lease, f"it could not be renewed in time: {error}")
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY[1])
            else:
                self._renewed(lease, asked_at, answers)
                return

    def _renewed(self, lease: str, asked_at: float, answers: dict[str, RenewResult]) -> None:
        if lease not in self._ends:
            return
        if not all(answer.alive for answer in answers.values()):
            self.lose(lease, "the storage refused to renew it")
            return
        self._ends[lease] = asked_at + self._seconds
        for queue, answer in answers.items():
            if answer.cancel_requested:
                self._asked(queue, answer)

    def lose(self, lease: str, why: str) -> None:
        """Take in that a lease is lost, once."""
        if self._ends.pop(lease, None) is not None:
            logger.error("a lease is lost, the worker ends what runs and starts anew: %s", why)
            self._lost(lease)

    def forget(self) -> None:
        """Renew none of the leases any more."""
        self._ends.clear()

    async def drop(self, lease: str) -> None:
        """Give a lease back, with all jobs still under it. Raises StorageError, OutcomeUnknown."""
        self._ends.pop(lease, None)
        while any((await self._storage.drop(self._queues, lease, STEP)).values()):
            pass

    @property
    def _ttl(self) -> int:
        return round(self._seconds * 1000)
