"""The async face of a storage over an index: every verb of the protocol, checked at the door.

A storage that inherits it says how a step is made: how the index is locked, brought up to date, and
written down. Docstrings of the verbs stand in dibs.storage.protocol.
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
from dibs.storage import checks
from dibs.storage.capabilities import Capabilities
from dibs.storage.indexed import administration as keeping
from dibs.storage.indexed import claiming, enqueueing, reading, settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.wait import Waiter
from dibs.storage.protocol import Clock, Watch

P = ParamSpec("P")
T = TypeVar("T")
#: A verb over an index.
Verb = Callable[Concatenate[Index, P], T]


class IndexedStorage(ABC):
    """A storage whose jobs are in an index; see dibs.storage.protocol.Storage."""

    capabilities: Capabilities
    durability: str
    url: str

    def __init__(self, clock: Clock, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._manual = clock == "manual"
        self._open = False
        self._process = 0

    @abstractmethod
    async def _step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb as one atomic step, at the storage's now."""

    @abstractmethod
    async def _look(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that changes nothing."""

    @abstractmethod
    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        """Wait until the waiter is woken, something falls due, or `timeout` s are over."""

    @abstractmethod
    async def open(self) -> None:
        """Open the place."""

    @abstractmethod
    async def close(self) -> None:
        """Close the place."""

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
        """Whether it was opened in the process that this one was forked from: none of its threads is here."""
        return self._process not in (0, os.getpid())

    def _check_open(self) -> None:
        if not self._open:
            raise NotRunning(f"{self.url} is not open")
        if self._is_forked:
            raise NotRunning(f"{self.url} was opened before a fork: open it again in this process")

    def _time(self, now: int | None) -> int:
        """Return the time of a step; the index lets it never step back."""
        self._check_open()
        checks.check_now(now, manual=self._manual)
        if self._manual:
            return now or 0
        return time.time_ns() // 1_000_000

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        checks.check_enqueue(queue, requests, self.limits)
        return await self._step(now, enqueueing.enqueue, queue, requests)

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._step(now, claiming.claim, queue, lease, limit)

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        checks.check_queue(queue, within=self.limits)
        return await self._step(now, settling.settle, queue, settlements, self.limits)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._step(now, _turn, queue, settlements, lease, limit, self.limits)

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        checks.check_finish(queue, end, self.limits)
        return await self._step(now, settling.finish, queue, id, end, revision)

    # -- leases --------------------------------------------------------------------------------------

    async def grant(self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None) -> GrantResult:
        checks.check_grant(queues, ttl, holder, self.limits)
        return await self._step(now, claiming.grant, queues, secrets.token_hex(16), ttl, holder)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        checks.check_renew(queues, ttl, self.limits)
        return await self._step(now, claiming.renew, queues, lease, ttl)

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, self.limits)
        return await self._step(now, claiming.drop, queues, lease, limit)

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> list[ReapedJob]:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._step(now, claiming.reap, queue, limit)

    async def report(
        self, queue: str, id: str, fence: int, progress: bytes, *, now: int | None = None
    ) -> ReportStatus:
        checks.check_report(queue, progress, self.limits)
        return await self._step(now, settling.report, queue, id, fence, progress)

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> list[CancelStatus]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return await self._step(now, keeping.cancel, queue, ids, running)

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        checks.check_amend(queue, patch, self.limits)
        return await self._step(now, keeping.amend, queue, id, patch, self.limits)

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, now: int | None = None
    ) -> list[RetryFailedStatus]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return await self._step(now, keeping.retry_failed, queue, ids)

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[bool]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return await self._step(now, keeping.forget, queue, ids)

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[Slot]:
        checks.check_queue(queue, ids=ids, within=self.limits)
        return await self._look(now, reading.get, queue, ids)

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
        checks.check_list(queue, state, limit, self.limits)
        return await self._look(now, reading.list_, queue, state, after, until, limit)

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state, self.limits)
        return await self._look(None, reading.split, queue, parts, state)

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        checks.check_counts(queues, self.limits)
        return await self._look(now, reading.counts, queues)

    async def queues(self) -> Sequence[QueueInfo]:
        return await self._look(None, reading.queues)

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        checks.check_configure(queue, patch, self.limits)
        return await self._step(now, keeping.configure, queue, patch)

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._step(now, keeping.prune, queue, limit)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._look(None, reading.export, queue, after, until, limit)

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        checks.check_import(queue, records, self.limits)
        return await self._step(now, keeping.import_, queue, records)

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self, queue: str, *, after: str | None = None, limit: int = 100, now: int | None = None
    ) -> EventPage:
        checks.check_queue(queue, limit, within=self.limits)
        return await self._look(now, reading.events, queue, after, limit)

    async def wait(
        self,
        queues: Sequence[str],
        *,
        for_: Watch = "work",
        ids: Sequence[str] = (),
        since: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> WaitResult:
        checks.check_wait(queues, for_, ids, self.limits)
        return await self._wait(Waiter(for_, queues, ids), since or {}, timeout)


def _turn(
    index: Index,
    queue: str,
    settlements: Sequence[Settlement],
    lease: str,
    limit: int,
    limits: Limits,
) -> SettleAndClaimResult:
    settled = settling.settle(index, queue, settlements, limits)
    return SettleAndClaimResult(tuple(settled), claiming.claim(index, queue, lease, limit))
