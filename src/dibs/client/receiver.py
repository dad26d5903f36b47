"""Jobs by hand: claims under a lease that is kept alive in the background."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from dibs.client.claim import Claim, lease_ms
from dibs.client.connection.outcome_wait import SLOW_POLL
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.durations import Seconds, duration_ms
from dibs.errors import NotRunning, OutcomeUnknown, StorageError
from dibs.model.check_values import check_number
from dibs.model.job import Job
from dibs.model.results import RenewResult
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.client.sync.claims import BlockingReceiver

#: How often a lease is renewed while it lasts.
RENEWALS_PER_LEASE: Final = 3
#: How many jobs one step of a drop or a reap takes.
BATCH_SIZE: Final = 100


class HeldLease:
    """One lease for as long as it may be renewed, and what is held under it."""

    def __init__(self, lease: str, ttl: int) -> None:
        self.lease = lease
        self._ttl = ttl
        self.held: dict[int, Claim] = {}
        #: Whether an end under it waits for a commit: then it ends by itself, for a drop would wait as well.
        self.is_open_ended = False

    @property
    def ttl(self) -> int:
        """How long a renewal lasts, ms: the longest that a job held here asks for."""
        return max((claim.lease_ms or 0 for claim in self.held.values()), default=0) or self._ttl

    def hear(self, state: RenewResult) -> None:
        """Pass on what a heartbeat found."""
        for claim in self.held.values():
            claim.cancelled = claim.cancelled or claim.id in state.cancel_requested
        if not state.alive:
            self.end()

    def end(self) -> None:
        """The lease is over, and with it every claim."""
        for claim in self.held.values():
            claim.lost = True
        self.held.clear()


class Receiver:
    """Claims of one queue: `async with` it, then `async for claim in` it. Leaving releases the rest.

    At most `max_jobs` are held at a time: who settles none of them is given no more. The lease is renewed
    in the background, and what dead holders left comes back on the way.
    """

    def __init__(
        self,
        client: QueueClient,
        max_jobs: int,
        lease: Seconds,
        wait: Seconds | None,
        *,
        handles_failure: bool,
    ) -> None:
        check_number("max_jobs", max_jobs, 1, 1_000_000)
        self._client = client
        self._max_jobs = max_jobs
        self._ttl = lease_ms(lease)
        self._wait = None if wait is None else duration_ms("wait", wait) / 1000
        self._handles_failure = handles_failure
        self._current: HeldLease | None = None
        self._tenures: list[HeldLease] = []
        self._buffer: deque[Claim] = deque()
        self._room_made = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None

    @property
    def sync(self) -> BlockingReceiver:
        """The same, blocking."""
        from dibs.client.sync.claims import BlockingReceiver  # noqa: PLC0415 - only who blocks pays for it

        return BlockingReceiver(self)

    async def __aenter__(self) -> Self:
        await self._grant(await self._client.storage())
        self._heart = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._heart is not None:
            self._heart.cancel()
        self._buffer.clear()
        # Once the app is closed nobody can be told; the leases end by themselves.
        with suppress(NotRunning):
            storage = await self._client.storage()
            while self._tenures:
                await self._drop(storage, self._tenures[-1])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim:
        """Return the next claim; ends when nothing came for `wait` seconds."""
        if self._heart is None:
            raise NotRunning(
                "enter it first: async with queue.receive() as claims: async for claim in claims"
            )
        deadline = None if self._wait is None else time.monotonic() + self._wait
        while not self._buffer:
            if self._room <= 0:
                await self._until_room(deadline)
                continue
            storage = await self._client.storage()
            token = await self._claim(storage)
            if not self._buffer:
                await self._hint(storage, token, _left(deadline))
        return self._buffer.popleft()

    @property
    def _room(self) -> int:
        return self._max_jobs - sum(len(tenure.held) for tenure in self._tenures)

    async def _until_room(self, deadline: float | None) -> None:
        self._room_made.clear()
        try:
            await asyncio.wait_for(self._room_made.wait(), _left(deadline))
        except TimeoutError:
            raise StopAsyncIteration from None

    async def _claim(self, storage: Storage) -> str:
        """Fill the buffer, and return the token to wait with."""
        tenure = self._current or await self._grant(storage)
        try:
            answer = await storage.claim(self._client.name, tenure.lease, self._room)
        except OutcomeUnknown:
            self._current = None
            return ""
        except BaseException:
            # Cancelled on the way: jobs may have been taken that nobody knows. No more claims under this
            # lease; it is dropped as soon as what is known there has settled (contract 4, promise 7).
            self._current = None
            raise
        if answer.lost:
            self._end(tenure)
        for job in answer.jobs:
            self._take(tenure, job)
        return answer.token

    def _take(self, tenure: HeldLease, job: Job) -> None:
        def let_go(connection: Any) -> None:
            tenure.held.pop(claim.fence, None)
            self._room_made.set()
            if connection is not None:
                tenure.is_open_ended = True
                self._current = None if self._current is tenure else self._current

        claim = Claim(self._client, job, tenure.lease, let_go, handles_failure=self._handles_failure)
        tenure.held[claim.fence] = claim
        self._buffer.append(claim)

    async def _hint(self, storage: Storage, token: str, left: float | None) -> None:
        if left is not None and left <= 0:
            raise StopAsyncIteration
        seconds = SLOW_POLL if left is None else min(SLOW_POLL, left)
        since = {self._client.name: token} if token else None
        with suppress(StorageError):
            await storage.wait([self._client.name], since=since, timeout=seconds)
            return
        await asyncio.sleep(seconds)

    # -- the lease -----------------------------------------------------------------------------------

    async def _grant(self, storage: Storage) -> HeldLease:
        holder = f"receive:{socket.gethostname()}:{os.getpid()}"
        granted = await storage.grant([self._client.name], self._ttl, holder)
        self._current = tenure = HeldLease(granted.lease, self._ttl)
        self._tenures.append(tenure)
        return tenure

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._ttl / 1000 / RENEWALS_PER_LEASE)
            try:
                storage = await self._client.storage()
                for tenure in list(self._tenures):
                    await self._renew(storage, tenure)
                await storage.reap(self._client.name, BATCH_SIZE)
            except (StorageError, OutcomeUnknown):
                # A storage that is away for a while may end the lease; it does not end the heart.
                continue
            except NotRunning:
                return

    async def _renew(self, storage: Storage, tenure: HeldLease) -> None:
        if tenure is not self._current and not tenure.held:
            await self._drop(storage, tenure)
            return
        name = self._client.name
        state = (await storage.renew([name], tenure.lease, tenure.ttl))[name]
        tenure.hear(state)
        if not state.alive:
            self._end(tenure)

    def _end(self, tenure: HeldLease) -> None:
        tenure.end()
        if tenure in self._tenures:
            self._tenures.remove(tenure)
        if tenure is self._current:
            self._current = None
        self._buffer = deque(claim for claim in self._buffer if not claim.lost)
        self._room_made.set()

    async def _drop(self, storage: Storage, tenure: HeldLease) -> None:
        if tenure.is_open_ended:
            rest = [claim.release() for claim in tenure.held.values()]
            await asyncio.gather(*rest, return_exceptions=True)
            self._end(tenure)
            return
        self._end(tenure)
        while any((await storage.drop([self._client.name], tenure.lease, BATCH_SIZE)).values()):
            pass


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
