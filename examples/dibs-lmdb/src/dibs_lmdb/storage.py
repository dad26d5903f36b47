"""The storage: each verb checks its arguments, and runs as one transaction on the thread of the storage."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from dibs.errors import NotRunning, Refused
from dibs.model.job import Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    JobPatch,
    Settings,
    SettingsPatch,
    Settlement,
)
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
from dibs.storage.protocol import Clock, Watch
from dibs.storage.unsent import mark_unsent
from dibs_lmdb import keys, reads, verbs, whole_queue
from dibs_lmdb.environment import Environment
from dibs_lmdb.queue import Queues
from dibs_lmdb.records import LeaseRecord

log = logging.getLogger("dibs_lmdb")
Answer = TypeVar("Answer")

MAP_SIZE = 64 << 30
"""The largest size of the file. LMDB reserves addresses of this size, not memory or disk."""


class LmdbStorage:
    def __init__(
        self,
        folder: Path,
        url: str,
        clock: Clock,
        *,
        fsync: bool = True,
        poll: float = 0.05,
        map_size: int = MAP_SIZE,
    ) -> None:
        self.url = url
        self.capabilities = Capabilities(
            durable=True, shared=True, cross_queue=True, manual_clock=True, fair=True, output=True
        )
        self.durability = (
            "power loss: LMDB syncs each commit to the disk"
            if fsync
            else "the crash of every process; a power loss may damage the folder"
        )
        self._folder, self._manual, self._poll = folder, clock == "manual", poll
        self._fsync, self._map_size = fsync, map_size
        self._environment: Environment | None = None
        self._former: list[Environment] = []
        self._thread: ThreadPoolExecutor | None = None
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._closed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dibs-lmdb")
        opening = self._thread.submit(
            Environment.open, self._folder, sync=self._fsync, map_size=self._map_size
        )
        self._environment = await asyncio.wrap_future(opening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        environment, thread = self._environment, self._thread
        self._environment = self._thread = None
        self._closed.set()
        if environment is not None and thread is not None:
            for each in (environment, *self._former):
                await asyncio.shield(asyncio.wrap_future(thread.submit(each.close)))
            self._former = []
            thread.shutdown(wait=False)

    def _current_environment(self) -> Environment:
        """Return the environment of the file that the folder has now. Called on the thread of the storage."""
        environment = self._environment
        if environment is None:
            raise NotRunning("the storage is not open; use it inside `async with`")
        if environment.is_replaced:
            log.warning("another program has removed or replaced %s: it is opened again", self._folder)
            # A wait may look at the former one, so it is closed with the storage.
            self._former.append(environment)
            environment = self._environment = Environment.open(
                self._folder, sync=self._fsync, map_size=self._map_size
            )
        return environment

    async def _write(self, work: Callable[[Queues], Answer], now: int | None) -> Answer:
        return await self._step(work, now, write=True)

    async def _read(self, work: Callable[[Queues], Answer], now: int | None = None) -> Answer:
        return await self._step(work, now, write=False)

    async def _step(self, work: Callable[[Queues], Answer], now: int | None, *, write: bool) -> Answer:
        thread = self._thread
        if thread is None:
            raise NotRunning("the storage is not open; use it inside `async with`")
        checks.check_now(now, manual=self._manual)

        def run() -> Answer:
            environment = self._current_environment()
            # A time that a test sets is kept, also if the verb only reads.
            with environment.step(
                self.url, (now or 0) if self._manual else None, write=write or now is not None
            ) as step:
                queues = Queues(step)
                answer = work(queues)
                if write:
                    queues.save()
                return answer

        call = thread.submit(run)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError as error:
            if call.cancelled():
                mark_unsent(error, "an earlier call of this storage")
            raise

    # Enqueue, claim, settle

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> Sequence[EnqueueResult]:
        checked = checks.check_enqueue(queue, requests)
        return await self._write(lambda queues: verbs.enqueue(queues, queue, checked), now)

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_claim(queue, lease, limit)
        return await self._write(lambda queues: verbs.claim(queues, queue, lease, limit), now)

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> Sequence[SettleResult]:
        checks.check_settle(queue, settlements)
        return await self._write(lambda queues: verbs.settle(queues, queue, settlements), now)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_settle(queue, settlements)
        checks.check_claim(queue, lease, limit)

        def work(queues: Queues) -> SettleAndClaimResult:
            settled = tuple(verbs.settle(queues, queue, settlements))
            return SettleAndClaimResult(settled=settled, claim=verbs.claim(queues, queue, lease, limit))

        return await self._write(work, now)

    async def finish(
        self, queue: str, id: str, end: Complete | Fail | Cancelled, revision: int, *, now: int | None = None
    ) -> FinishStatus:
        checks.check_finish(queue, end, id=id, revision=revision)
        return await self._write(lambda queues: verbs.finish(queues, queue, id, end, revision), now)

    # Leases

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> GrantResult:
        checks.check_grant(queues, ttl, holder)
        lease = secrets.token_hex(16)

        def work(opened: Queues) -> GrantResult:
            expires = opened.step.now + ttl
            for name in queues:
                opened[name].put_lease(keys.digest(lease), None, LeaseRecord(holder, expires))
            return GrantResult(lease=lease, now=opened.step.now, expires_at=expires)

        return await self._write(work, now)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, RenewResult]:
        checks.check_renew(queues, ttl, lease=lease)

        def work(opened: Queues) -> dict[str, RenewResult]:
            results, at, hashed = {}, opened.step.now, keys.digest(lease)
            for name in queues:
                found = opened[name].lease(lease)
                if found is None or not found.is_alive(at):
                    results[name] = RenewResult(alive=False, now=at)
                    continue
                renewed = LeaseRecord(found.holder, max(found.expires, at + ttl))
                opened[name].put_lease(hashed, found, renewed)
                cancelled = tuple(
                    record.id for record in opened[name].jobs_under(hashed, cancel_requested=True)
                )
                results[name] = RenewResult(
                    alive=True, now=at, expires_at=renewed.expires, cancel_requested=cancelled
                )
            return results

        return await self._write(work, now)

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, lease=lease)
        return await self._write(
            lambda opened: {name: verbs.drop(opened, name, lease, limit) for name in queues}, now
        )

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> Sequence[ReapedJob]:
        checks.check_queue(queue, limit)
        return await self._write(lambda queues: verbs.reap(queues, queue, limit), now)

    # Single ids

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
        checks.check_report(queue, progress, memo, id=id, fence=fence, output=output, keeps_output=True)
        reported = (progress, memo, output)
        return await self._write(lambda queues: verbs.report(queues, queue, id, fence, reported), now)

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> Sequence[CancelStatus]:
        checks.check_cancel(queue, ids, running)
        return await self._write(
            lambda queues: [verbs.cancel(queues, queue, id, running=running) for id in ids], now
        )

    async def amend(self, queue: str, id: str, patch: JobPatch, *, now: int | None = None) -> AmendStatus:
        checks.check_amend(queue, patch, id=id)
        return await self._write(lambda queues: verbs.amend(queues, queue, id, patch), now)

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, delay: int = 0, now: int | None = None
    ) -> Sequence[RetryFailedStatus]:
        checks.check_retry_failed(queue, ids, delay)
        return await self._write(
            lambda queues: [verbs.retry_failed(queues, queue, id, delay) for id in ids], now
        )

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> Sequence[bool]:
        checks.check_queue(queue, ids=ids)
        return await self._write(lambda queues: [verbs.forget(queues, queue, id) for id in ids], now)

    # Queues as a whole

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> Sequence[Slot]:
        checks.check_queue(queue, ids=ids)
        return await self._read(lambda queues: reads.get(queues, queue, ids), now)

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
        checks.check_list(queue, state, limit, after=after, until=until)
        return await self._read(lambda queues: reads.list_(queues, queue, state, after, until, limit), now)

    async def split(self, queue: str, parts: int, *, state: State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state)
        return await self._read(lambda _: reads.split(parts))

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, Counts]:
        checks.check_counts(queues)
        return await self._read(lambda opened: {name: reads.counts(opened, name) for name in queues}, now)

    async def queues(self) -> Sequence[QueueInfo]:
        return await self._read(reads.queues_)

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        checks.check_configure(queue, patch, fair=True)
        return await self._write(lambda queues: whole_queue.configure(queues, queue, patch), now)

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        checks.check_queue(queue, limit)
        return await self._write(lambda queues: whole_queue.prune(queues, queue, limit), now)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> ExportPage:
        checks.check_export(queue, after, until, limit)
        return await self._read(lambda queues: reads.export(queues, queue, after, until, limit))

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Sequence[ImportStatus]:
        checks.check_import(queue, records)
        return await self._write(lambda queues: whole_queue.import_(queues, queue, records), now)

    async def events(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        id: str | None = None,
        now: int | None = None,
    ) -> EventPage:
        checks.check_events(queue, limit, id=id, keeps_output=True)
        if id is not None:
            return await self._read(lambda queues: reads.output(queues, queue, id, after, limit), now)
        return await self._read(lambda queues: reads.events(queues, queue, after, limit), now)

    # Waits

    async def wait(
        self,
        queues: Sequence[str],
        *,
        for_: Watch = "work",
        ids: Sequence[str] = (),
        since: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> WaitResult:
        checks.check_wait(queues, for_, ids, since=since, timeout=timeout)
        known = {name: _read_token(token) for name, token in (since or {}).items()}
        closed, loop = self._closed, asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + timeout
        current = await self._read(verbs.token)
        start = (-1, -1) if for_ == "work" else _read_token(current)
        tokens = {name: known.get(name, start) for name in queues}
        while True:
            environment = self._environment
            if environment is None:
                raise NotRunning("the storage was closed during a wait")
            change = environment.change
            over, due_in, outcomes, current = await self._read(
                lambda opened: (*reads.has_news(opened, queues, for_, ids, tokens), verbs.token(opened))
            )
            if over or (ends is not None and loop.time() >= ends):
                return WaitResult(woken=over, since=dict.fromkeys(queues, current), outcomes=outcomes)
            due = None if due_in is None or self._manual else loop.time() + due_in / 1000
            while True:
                if closed.is_set():
                    return WaitResult(woken=False, since=dict.fromkeys(queues, current))
                at = loop.time()
                if environment.change != change or any(
                    time is not None and at >= time for time in (due, ends)
                ):
                    break
                pause = min([self._poll, *(time - at for time in (due, ends) if time is not None)])
                await asyncio.sleep(max(pause, 0.001))


def _read_token(token: str) -> tuple[int, int]:
    number, _, time = token.partition(".")
    try:
        return int(number), int(time)
    except ValueError:
        raise Refused(f"since has {token!r}, which is not a token of this storage", field="since") from None
