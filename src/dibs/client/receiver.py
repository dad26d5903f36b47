"""Receivers claim jobs for a program without a worker, and renew the lease in the background."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from attrs import define, field

from dibs.client.claim import Claim, to_lease_ms
from dibs.client.connection.outcome_wait import SLOW_POLL_SECONDS
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import Seconds, wait_ms
from dibs.errors import NotRunning, OutcomeUnknown, Refused, StorageError
from dibs.model.check_values import check_optional_number
from dibs.model.job import Job
from dibs.model.requests import Release, SettingsPatch, SettleAction, Settlement
from dibs.model.results import RenewResult
from dibs.model.run_outcome import cancel_if_too_late
from dibs.model.schedule import UNREADABLE_PAUSE, refuse_tick
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.client.sync.claim import BlockingReceiver

#: Renewals during the length of a lease: a lease of 30 s is renewed every 10 s.
RENEWALS_PER_LEASE: Final = 3
#: Most jobs that one call of Storage.drop or Storage.reap returns to the queue.
BATCH_SIZE: Final = 100


@define(eq=False)
class HeldLease:
    """A lease of a receiver, with the open claims under it.

    A lease is the right to hold jobs for a limited time. When it expires, the jobs return to the queue.
    """

    lease: str
    #: Length in ms that the receiver asks for.
    _lease_ms: int
    #: The open claims by id and `Claim.fence`. The jobs of one call may share a fence.
    claims: dict[tuple[str, int], Claim] = field(factory=dict[tuple[str, int], Claim])
    #: True after a claim was settled in a transaction, which may still be open. A drop of the lease would
    #: wait for that transaction, so the receiver releases the claims one by one and lets the lease expire.
    has_open_transaction: bool = False

    @property
    def renewal_ms(self) -> int:
        """Length of the next renewal in ms: the longest of the receiver's own and those that jobs set."""
        return max([self._lease_ms, *(claim.lease_ms or 0 for claim in self.claims.values())])

    def apply_renewal(self, renewed: RenewResult) -> None:
        """Mark the claims that were cancelled. If the lease has ended, mark all claims as lost."""
        for claim in self.claims.values():
            claim.cancelled = claim.cancelled or claim.id in renewed.cancel_requested
        if not renewed.alive:
            self.mark_lost()

    def mark_lost(self) -> None:
        """Mark all claims as lost and remove them: other workers may run their jobs now."""
        for claim in self.claims.values():
            claim.lost = True
        self.claims.clear()


class Receiver:
    """The claims of one queue: `async with queue.receive() as claims: async for claim in claims:`.

    It holds at most `max_jobs` claims: the iteration waits until one of them is settled. The lease of the
    claims is renewed in the background. Jobs under expired leases of other holders return to the queue at
    each renewal, before the first wait for a job, and before the end of the iteration. The end of the block
    releases all claims that are not settled.
    """

    def __init__(
        self,
        client: QueueClient,
        max_jobs: int,
        lease: Seconds,
        wait: Seconds | None,
        *,
        has_failure_handler: bool = False,
    ) -> None:
        check_optional_number("max_jobs", max_jobs, 1, 1_000_000)
        self._client = client
        self._max_jobs = max_jobs
        self._lease_ms = to_lease_ms(lease)
        self._wait = None if wait is None else wait_ms(wait) / 1000
        #: True if the app declares a failure handler for the queue.
        self._has_failure_handler = has_failure_handler
        #: The lease for the next claims, one of `_leases`; None if the next claim needs a new lease.
        self._current: HeldLease | None = None
        self._leases: list[HeldLease] = []
        #: Claims that the iteration has not yielded yet.
        self._buffer: deque[Claim] = deque()
        self._slot_freed = asyncio.Event()
        #: True after the first reap of `__anext__`; later ones are those of the heartbeat.
        self._has_reaped = False
        self._heartbeat: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        held = self._max_jobs - self._free_slots
        return f"<Receiver {self._client.label}, {held} of {self._max_jobs} claims held>"

    @property
    def sync(self) -> BlockingReceiver:
        """This receiver with blocking methods, for code without an event loop."""
        from dibs.client.sync.claim import BlockingReceiver  # noqa: PLC0415 - async programs never load it

        return BlockingReceiver(self)

    async def __aenter__(self) -> Self:
        storage = await self._client.storage()
        if self._has_failure_handler:
            await self._set_fail_handler(storage)
        await self._grant_lease(storage)
        self._heartbeat = asyncio.create_task(self._run_heartbeat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._buffer.clear()
        # After `app.close` the storage raises NotRunning; then the leases expire by themselves.
        with suppress(NotRunning):
            storage = await self._client.storage()
            while self._leases:
                await self._drop_lease(storage, self._leases[-1])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim:
        """Return the next claim. The iteration ends after `wait` seconds without a job."""
        if self._heartbeat is None:
            raise NotRunning(
                "this receiver is not entered; write `async with queue.receive() as claims:`, "
                "then `async for claim in claims:`"
            )
        deadline = None if self._wait is None else time.monotonic() + self._wait
        while not self._buffer:
            if self._free_slots <= 0:
                await self._wait_for_slot(deadline)
                continue
            storage = await self._client.storage()
            token = await self._claim_jobs(storage)
            seconds_left = _seconds_left(deadline)
            if not self._buffer and not await self._reap(storage, seconds_left):
                await self._wait_for_jobs(storage, token, seconds_left)
        return self._buffer.popleft()

    async def _set_fail_handler(self, storage: Storage) -> None:
        """Set `fail_handler` before the first claim, as a worker does, so that no failure is missed."""
        name = self._client.name
        if not any(info.name == name and info.settings.fail_handler for info in await storage.queues()):
            await storage.configure(name, SettingsPatch(fail_handler=True))

    @property
    def _free_slots(self) -> int:
        return self._max_jobs - sum(len(held.claims) for held in self._leases)

    async def _wait_for_slot(self, deadline: float | None) -> None:
        self._slot_freed.clear()
        try:
            await asyncio.wait_for(self._slot_freed.wait(), _seconds_left(deadline))
        except TimeoutError:
            raise StopAsyncIteration from None

    async def _claim_jobs(self, storage: Storage) -> str:
        """Claim jobs into the buffer. Return the token for the storage's wait, "" if it is unknown.

        It claims again while all jobs of a claim had passed their `start_by`, because jobs behind them may be
        due.
        """
        while True:
            token, cancelled = await self._claim_once(storage)
            if not cancelled or self._buffer:
                return token

    async def _claim_once(self, storage: Storage) -> tuple[str, int]:
        """Claim jobs into the buffer. Return the token, and the number of jobs cancelled as too late."""
        held = self._current or await self._grant_lease(storage)
        late: list[Settlement] = []
        try:
            answer = await storage.claim(self._client.name, held.lease, self._free_slots)
            for job in answer.jobs:
                if (action := self._refuse(job)) is None or job.run is None:
                    self._add_claim(held, job)
                else:
                    late.append(Settlement(id=job.id, fence=job.run.fence, action=action))
            if late:
                await storage.settle(self._client.name, late)
        except OutcomeUnknown:
            self._current = None
            return "", 0
        except BaseException:
            # The call was cancelled, and the storage may have claimed jobs that this process does not know.
            # Claim no more under this lease, and drop it as soon as its known claims are settled: that
            # returns the unknown jobs to the queue (contract 4, promise 7).
            self._current = None
            raise
        if answer.lost:
            self._end_lease(held)
        elif any((claim.lease_ms or 0) > self._lease_ms for claim in self._buffer):
            # A longer lease of a job counts from its claim. If this renewal fails, the heartbeat repeats it.
            with suppress(StorageError, OutcomeUnknown):
                await self._renew_lease(storage, held)
        return answer.token, len(late)

    def _refuse(self, job: Job) -> SettleAction | None:
        """Return the action for a job that is claimed too late, or as the tick of an ended schedule."""
        try:
            return refuse_tick(job) or cancel_if_too_late(job)
        except Refused:
            # A schedule that this program cannot read: the end of the run would be the end of the schedule.
            return Release(delay=UNREADABLE_PAUSE)

    def _add_claim(self, held: HeldLease, job: Job) -> None:
        def on_settled(connection: Any) -> None:
            held.claims.pop((claim.id, claim.fence), None)
            self._slot_freed.set()
            if connection is not None:
                held.has_open_transaction = True
                self._current = None if self._current is held else self._current

        claim = Claim(self._client, job, held.lease, on_settled)
        held.claims[claim.id, claim.fence] = claim
        self._buffer.append(claim)

    async def _reap(self, storage: Storage, seconds_left: float | None) -> bool:
        """Return whether jobs of expired leases have returned to the queue.

        A short receiver may end before its first heartbeat, so it reaps before its first wait and before its
        end. In between, a reap would cost each job that arrives alone a round trip.
        """
        if self._has_reaped and (seconds_left is None or seconds_left > 0):
            return False
        self._has_reaped = True
        with suppress(StorageError, OutcomeUnknown):
            return len(await storage.reap(self._client.name, BATCH_SIZE)) > 0
        return False

    async def _wait_for_jobs(self, storage: Storage, token: str, seconds_left: float | None) -> None:
        if seconds_left is not None and seconds_left <= 0:
            raise StopAsyncIteration
        seconds = SLOW_POLL_SECONDS if seconds_left is None else min(SLOW_POLL_SECONDS, seconds_left)
        since = {self._client.name: token} if token else None
        with suppress(StorageError):
            await storage.wait([self._client.name], since=since, timeout=seconds)
            return
        await asyncio.sleep(seconds)

    # -- the lease -----------------------------------------------------------------------------------

    async def _grant_lease(self, storage: Storage) -> HeldLease:
        holder = f"receive:{socket.gethostname()}:{os.getpid()}"
        granted = await storage.grant([self._client.name], self._lease_ms, holder)
        self._current = held = HeldLease(granted.lease, self._lease_ms)
        self._leases.append(held)
        return held

    async def _run_heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 1000 / RENEWALS_PER_LEASE)
            try:
                storage = await self._client.storage()
                for held in list(self._leases):
                    await self._renew_lease(storage, held)
                await storage.reap(self._client.name, BATCH_SIZE)
            except (StorageError, OutcomeUnknown):
                # The lease may expire while the storage is unavailable; the next renewal finds that out.
                continue
            except NotRunning:
                return

    async def _renew_lease(self, storage: Storage, held: HeldLease) -> None:
        if held is not self._current and not held.claims:
            await self._drop_lease(storage, held)
            return
        name = self._client.name
        renewed = (await storage.renew([name], held.lease, held.renewal_ms))[name]
        held.apply_renewal(renewed)
        if not renewed.alive:
            self._end_lease(held)

    def _end_lease(self, held: HeldLease) -> None:
        held.mark_lost()
        if held in self._leases:
            self._leases.remove(held)
        if held is self._current:
            self._current = None
        self._buffer = deque(claim for claim in self._buffer if not claim.lost)
        self._slot_freed.set()

    async def _drop_lease(self, storage: Storage, held: HeldLease) -> None:
        if held.has_open_transaction:
            releases = [claim.release() for claim in held.claims.values()]
            await asyncio.gather(*releases, return_exceptions=True)
            self._end_lease(held)
            return
        self._end_lease(held)
        while any((await storage.drop([self._client.name], held.lease, BATCH_SIZE)).values()):
            pass


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
