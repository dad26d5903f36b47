"""The leases of one supervisor. A lease is the right to hold claimed jobs for a limited time.

The supervisor renews the leases for its workers: a handler may block the process of a worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from attrs import define, field

from dibs.model.error_text import summarize_exception
from dibs.model.results import RenewResult
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.supervisor.availability import RETRY_PAUSE, wait_until_available
from dibs.worker.supervisor.held_runs import HeldRuns
from dibs.worker.supervisor.workers import WorkerHandle, Workers

logger = logging.getLogger("dibs.worker")

#: Largest number of jobs that one call of the storage's `drop` releases.
DROP_BATCH: Final = 1000


@define(eq=False, kw_only=True)
class LeaseKeeper:
    """Grants, renews and drops leases over all queues of the supervisor.

    A lease is lost if the storage refuses to renew it. It is also lost if `lease_seconds` have passed since
    the last renewal with a reply was sent, because other workers may hold its jobs by then.
    """

    _storage: Storage
    _queues: Sequence[str]
    #: The name of this supervisor that the storage shows.
    _holder: str
    #: Seconds after which a lease expires without a renewal.
    _lease_seconds: float
    _renew_every: float
    #: Called once with each lost lease.
    _on_lost: Callable[[str], None]
    #: Called with a queue and the reply to a renewal, if the reply names jobs to cancel.
    _on_cancel_requested: Callable[[str, RenewResult], None]
    #: When each lease expires without a renewal, by time.monotonic().
    _expires_at: dict[str, float] = field(factory=dict, init=False)

    @property
    def leases(self) -> tuple[str, ...]:
        return tuple(self._expires_at)

    async def grant(self) -> str:
        """Return a new lease. Raise StorageError or OutcomeUnknown; no job is under the lease then."""
        sent_at = time.monotonic()
        granted = await self._storage.grant(self._queues, self._ttl_ms, self._holder)
        self._expires_at[granted.lease] = sent_at + self._lease_seconds
        return granted.lease

    async def grant_with_retries(self) -> str:
        """Return a new lease, retrying after any error: a storage may raise anything.

        If the reply of an attempt was lost, its lease is never used, and expires.
        """
        return await wait_until_available(self.grant, "no lease", lambda _: True)

    async def keep_renewing(self) -> None:
        """Renew all leases every `renew_every` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._renew_every)
            for lease in self.leases:
                await self._renew(lease)

    async def _renew(self, lease: str) -> None:
        pause = RETRY_PAUSE[0]
        while lease in self._expires_at:
            sent_at = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, self._expires_at[lease] - sent_at)):
                    results = await self._storage.renew(self._queues, lease, self._ttl_ms)
            except Exception as error:  # noqa: BLE001 - after any error, try again while the lease lasts
                if time.monotonic() + pause >= self._expires_at.get(lease, 0.0):
                    self.mark_lost(lease, f"it could not be renewed in time: {summarize_exception(error)}")
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_PAUSE[1])
            else:
                self._on_renewed(lease, sent_at, results)
                return

    def _on_renewed(self, lease: str, sent_at: float, results: dict[str, RenewResult]) -> None:
        if lease not in self._expires_at:
            return
        if not all(result.alive for result in results.values()):
            self.mark_lost(lease, "the storage refused to renew it")
            return
        self._expires_at[lease] = sent_at + self._lease_seconds
        for queue, result in results.items():
            if result.cancel_requested:
                self._on_cancel_requested(queue, result)

    def mark_lost(self, lease: str, reason: str) -> None:
        """Stop renewing a lease and call `on_lost`, unless the lease is lost or dropped already."""
        if self._expires_at.pop(lease, None) is not None:
            logger.error("a lease is lost; all runs are stopped and the workers start again: %s", reason)
            self._on_lost(lease)

    def forget_all(self) -> None:
        """Stop renewing all leases, so that they expire in the storage."""
        self._expires_at.clear()

    async def drop(self, lease: str) -> None:
        """End a lease and release all jobs under it. Raise StorageError or OutcomeUnknown."""
        self._expires_at.pop(lease, None)
        while any((await self._storage.drop(self._queues, lease, DROP_BATCH)).values()):
            pass

    @property
    def _ttl_ms(self) -> int:
        return round(self._lease_seconds * 1000)


@define(eq=False)
class LeaseRotation:
    """The lease that the workers claim under, and older leases under which runs have not ended yet."""

    _keeper: LeaseKeeper
    _workers: Workers
    _held_runs: HeldRuns[WorkerHandle]
    #: The lease for new claims; None while it is being granted.
    current: str | None = field(default=None, init=False)
    #: Leases for which no more claims are sent. Each is dropped when its last run is settled.
    _older_leases: set[str] = field(factory=set, init=False)
    _tasks: set[asyncio.Task[None]] = field(factory=set, init=False)

    async def start(self) -> None:
        """Grant the first lease and renew all leases from now on, as soon as the storage is available.

        Raise an error that does not pass, for example of a user who may not write.
        """
        self.current = await wait_until_available(self._keeper.grant, "no lease")
        self._start_task(self._keeper.keep_renewing())

    async def restart(self) -> None:
        """Grant a lease after `forget_all`, retrying until the storage is available."""
        self.current = await self._keeper.grant_with_retries()

    async def stop(self) -> None:
        """Drop all leases. A lease that cannot be dropped expires in the storage."""
        for task in self._tasks:
            task.cancel()
        for lease in self._keeper.leases:
            await self._drop(lease)

    def forget_all(self) -> None:
        """Stop renewing all leases without dropping them. Called after a lease was lost."""
        self._keeper.forget_all()
        self._older_leases.clear()
        self.current = None

    def replace_if_current(self, lease: str | None) -> None:
        """If `lease` is the current lease, grant a new one and send it to the workers; else do nothing."""
        if lease is None or lease != self.current:
            return
        self._older_leases.add(lease)
        self.current = None
        self._start_task(self._grant_next())

    async def _grant_next(self) -> None:
        self.current = await self._keeper.grant_with_retries()
        for worker in self._workers:
            if worker.ready:
                worker.send(messages.UseLease(self.current))
        self.drop_unused()

    def drop_unused(self) -> None:
        """Drop the older leases that no run is under, once every worker has adopted the current lease."""
        if not self._older_leases or self.current is None:
            return
        if any(w.ready and not w.drained and w.lease != self.current for w in self._workers):
            return
        for lease in [lease for lease in self._older_leases if not self._held_runs.count_under(lease)]:
            self._older_leases.discard(lease)
            self._start_task(self._drop(lease))

    async def _drop(self, lease: str) -> None:
        try:
            await self._keeper.drop(lease)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            # The lease is no longer renewed, so it expires, and any worker reaps its jobs.
            logger.warning("a lease could not be dropped and will expire: %s", summarize_exception(error))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
