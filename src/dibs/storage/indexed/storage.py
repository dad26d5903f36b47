"""The base class of memory and file storage: opening, the clock, and the async verbs.

Each verb checks its arguments and calls a function of the index.
"""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from dibs.errors import NotRunning
from dibs.model.job import Slot
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import End, EnqueueRequest, JobPatch, Settings, SettingsPatch, Settlement
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    Counts,
    EnqueueResult,
    EventPage,
    ExportPage,
    ExportRecord,
    FinishStatus,
    GrantResult,
    ImportStatus,
    ListPage,
    PruneResult,
    QueueInfo,
    ReapedJob,
    RenewResult,
    ReportStatus,
    RetryFailedStatus,
    SettleAndClaimResult,
    SettleResult,
    State,
    WaitResult,
)
from dibs.storage import checks, clock
from dibs.storage.capabilities import Capabilities
from dibs.storage.indexed import by_id, claiming, enqueueing, reading, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.waiters import Waiter
from dibs.storage.protocol import Clock, Watch

P = ParamSpec("P")
T = TypeVar("T")
#: A function that implements a verb, called with the index and the arguments of the verb.
Verb = Callable[Concatenate[Index, P], T]


class IndexedStorage(ABC):
    """The base class of storages whose jobs are in an Index.

    dibs.storage.protocol.Storage documents the verbs.

    A subclass defines how to lock the index, how to store its changes, and how to wait.
    """

    capabilities: Capabilities
    durability: str
    url: str

    def __init__(self, clock: Clock, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._manual = clock == "manual"
        self._reported_lead = 0
        self._open = False
        self._process = 0

    @abstractmethod
    async def _run_step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that changes the index, as one atomic step. `now` is for a manual clock, in ms."""

    @abstractmethod
    async def _run_read(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that only reads, on the newest state of the index."""

    @abstractmethod
    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        """Wait until a step wakes the waiter or a scheduled job falls due, for at most `timeout` s.

        Return at once if a queue has changed since its token in `since`.
        """

    @abstractmethod
    async def open(self) -> None:
        """Open the storage, and create it if it does not exist. Called by `async with`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the storage. Pending waits then raise NotRunning."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def _is_forked(self) -> bool:
        """True if a parent process opened the storage: a forked child has none of its threads."""
        return self._process not in (0, os.getpid())

    def _check_open(self) -> None:
        if not self._open:
            raise NotRunning(f"{self.url} is not open; open it with `async with`")
        if self._is_forked:
            raise NotRunning(f"{self.url} was opened before a fork: open it again in this process")

    def _advance_clock(self, index: Index, now: int | None) -> bool:
        """Check that the storage is open, and set `index.now` to the time of a verb.

        Return whether a manual clock has moved.
        """
        self._check_open()
        checks.check_now(now, manual=self._manual)
        if self._manual:
            before = index.now
            index.now = max(before, now or 0)
            return index.now > before
        time_ms = time.time_ns() // 1_000_000
        index.now, index.lead = clock.storage_time(time_ms, index.now, index.lead)
        if index.lead != self._reported_lead:
            self._reported_lead = index.lead
            clock.report_lead(self.url, index.lead)
        return False

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        checks.check_enqueue(queue, requests, self.limits)
        return await self._run_step(now, enqueueing.enqueue, queue, requests)

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        return await self._run_step(now, claiming.claim, queue, lease, limit)

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        checks.check_settle(queue, settlements, self.limits)
        return await self._run_step(now, settling.settle, queue, settlements, self.limits)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        checks.check_settle(queue, settlements, self.limits)
        return await self._run_step(now, _settle_and_claim, queue, settlements, lease, limit, self.limits)

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        checks.check_finish(queue, end, self.limits, id=id, revision=revision)
        return await self._run_step(now, settling.finish, queue, id, end, revision)

    # -- leases --------------------------------------------------------------------------------------

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> GrantResult:
        checks.check_grant(queues, ttl, holder, self.limits)
        return await self._run_step(now, claiming.grant, queues, secrets.token_hex(16), ttl, holder)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        checks.check_renew(queues, ttl, self.limits, lease=lease)
        return await self._run_step(now, claiming.renew, queues, lease, ttl)

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, self.limits, lease=lease)
        return await self._run_step(now, claiming.drop, queues, lease, limit)

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> list[ReapedJob]:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._run_step(now, claiming.reap, queue, limit)

    async def report(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        output: Sequence[bytes] = (),
        now: int | None = None,
    ) -> ReportStatus:
        checks.check_report(
            queue,
            progress,
            memo,
            self.limits,
            id=id,
            fence=fence,
            output=output,
            keeps_output=self.capabilities.output,
        )
        chunks = tuple(map(bytes, output))
        return await self._run_step(
            now, settling.report, queue, id, fence, progress, memo, chunks=chunks, limits=self.limits
        )

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> list[CancelStatus]:
        checks.check_cancel(queue, ids, running, self.limits)
        return await self._run_step(now, by_id.cancel, queue, ids, running)

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        checks.check_amend(queue, patch, self.limits, id=id)
        return await self._run_step(now, by_id.amend, queue, id, patch, self.limits)

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, delay: int = 0, now: int | None = None
    ) -> list[RetryFailedStatus]:
        checks.check_retry_failed(queue, ids, delay, self.limits)
        return await self._run_step(now, by_id.retry_failed, queue, ids, delay)

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[bool]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return await self._run_step(now, by_id.forget, queue, ids)

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[Slot]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return await self._run_read(now, reading.get, queue, ids)

    async def list(
        self,
        queue: str,
        state: State,
        *,
        after: str | None = None,
        until: str | None = None,
        limit: int = 100,
        now: int | None = None,
    ) -> ListPage:
        checks.check_list(queue, state, limit, self.limits, after=after, until=until)
        return await self._run_read(now, reading.list_, queue, state, after, until, limit)

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state, self.limits)
        return await self._run_read(None, reading.split, queue, parts, state)

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        checks.check_counts(queues, self.limits)
        return await self._run_read(now, reading.counts, queues)

    async def queues(self) -> Sequence[QueueInfo]:
        return await self._run_read(None, reading.queues)

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        checks.check_configure(
            queue, patch, self.limits, limits=self.capabilities.limits, fair=self.capabilities.fair
        )
        return await self._run_step(now, whole_queue.configure, queue, patch)

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._run_step(now, whole_queue.prune, queue, limit)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        checks.check_export(queue, after, until, limit, self.limits)
        return await self._run_read(None, reading.export, queue, after, until, limit)

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        checks.check_import(queue, records, self.limits)
        return await self._run_step(now, whole_queue.import_, queue, records)

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        id: str | None = None,
        now: int | None = None,
    ) -> EventPage:
        checks.check_events(queue, limit, self.limits, id=id, keeps_output=self.capabilities.output)
        if id is not None:
            return await self._run_read(now, reading.output, queue, id, after, limit)
        return await self._run_read(now, reading.events, queue, after, limit)

    async def wait(
        self,
        queues: Sequence[str],
        *,
        for_: Watch = "work",
        ids: Sequence[str] = (),
        since: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> WaitResult:
        checks.check_wait(queues, for_, ids, self.limits, since=since, timeout=timeout)
        return await self._wait(Waiter(for_, queues, ids), since or {}, timeout)


def _settle_and_claim(
    index: Index,
    queue: str,
    settlements: Sequence[Settlement],
    lease: str,
    limit: int,
    limits: Limits,
) -> SettleAndClaimResult:
    settled = settling.settle(index, queue, settlements, limits)
    return SettleAndClaimResult(tuple(settled), claiming.claim(index, queue, lease, limit))
