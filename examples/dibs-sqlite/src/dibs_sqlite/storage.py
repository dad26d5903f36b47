"""The storage class. Each of its methods checks its arguments, then runs as one transaction on one thread.

dibs.storage.protocol documents the methods.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from dibs.errors import ConfigurationError, NotRunning
from dibs.model import results
from dibs.model.job import Slot
from dibs.model.limits import LIMITS
from dibs.model.requests import End, EnqueueRequest, JobPatch, Settings, SettingsPatch, Settlement
from dibs.storage import checks
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Watch
from dibs.storage.registry import read_flag, read_options
from dibs_sqlite import by_id, claiming, enqueueing, reading, settling, wait, whole_queue
from dibs_sqlite.database import Database
from dibs_sqlite.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")
#: A function that implements a method of the protocol, called with a transaction and the method's arguments.
Verb = Callable[Concatenate[Transaction, P], T]

_OPTIONS: Final[dict[str, Callable[[str], Any]]] = {"fsync": read_flag, "poll": float}


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> SqliteStorage:
    """Return the storage for sqlite:PATH. A path without a leading slash starts at the working directory."""
    plain_url, named = read_options(url, _OPTIONS, options)
    return SqliteStorage(_parse_path(plain_url), clock=clock, **named)


def temporary_url(url: str, name: str) -> str:
    """Return the URL of a file in a folder of its own, next to the file of `url`.

    The conformance kit creates many of them, and copies the folder of some.
    """
    plain_url, mark, query = url.partition("?")
    return f"{plain_url}.{name}/jobs.db{mark}{query}"


def data_folder(url: str) -> Path:
    """Return the folder of the file of a URL, with SQLite's files beside it."""
    return Path(_parse_path(url.partition("?")[0])).parent


async def remove_url(url: str) -> None:
    """Remove the file of a URL. No process may have it open."""
    await asyncio.to_thread(_unlink, Path(_parse_path(url.partition("?")[0])))


def _unlink(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()  # Only an empty folder can be removed.


def _parse_path(url: str) -> str:
    path = url.partition(":")[2]
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    if not path or "\0" in path:
        raise ConfigurationError("the URL sqlite: has no path of a file; write sqlite:./jobs.db")
    return path


class SqliteStorage:
    """A storage in one SQLite file, for any number of processes on one machine.

    With `fsync`, each commit survives power loss; without it, commits survive the death of processes.
    `poll` is the interval in seconds at which waits look for changes by other processes.
    """

    #: The flag push_wakeups is missing, because waits find the changes of other processes by polling.
    capabilities = Capabilities(
        durable=True, shared=True, cross_queue=True, manual_clock=True, limits=True, fair=True, output=True
    )

    def __init__(
        self, path: str, *, clock: Clock = "system", fsync: bool = False, poll: float = 0.05
    ) -> None:
        if not 0 < poll < float("inf"):
            raise ConfigurationError(f"poll is {poll!r}; it must be a number of seconds above 0")
        self.url = f"sqlite:{path}"
        self.durability = (
            "power loss: every commit is fsynced"
            if fsync
            else "process crash: commits are not fsynced (?fsync=1 does)"
        )
        self.limits = LIMITS
        self._manual = clock == "manual"
        self._database = Database(Path(path), name=self.url, fsync=fsync, manual=self._manual)
        self._changes = wait.ChangeNotifier(self._data_version, poll)
        self._thread: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<SqliteStorage {self.url}>"

    # -- open and close ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dibs-sqlite")
        self._process = os.getpid()
        try:
            await self._run_on_thread(self._database.open)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is None or self._process != os.getpid():
            return
        self._changes.notify()
        await asyncio.get_running_loop().run_in_executor(thread, self._database.close)
        thread.shutdown(wait=False)

    async def _run_on_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            raise NotRunning(f"{self.url} is not open")
        if self._process != os.getpid():
            raise NotRunning(f"{self.url} was opened before a fork: open it again in this process")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def compact(self) -> None:
        """Copy the write-ahead log into the file now, as far as no reader needs the log."""
        await self._run_on_thread(self._database.checkpoint)

    async def _data_version(self) -> int:
        return await self._run_on_thread(self._database.version)

    # -- steps ---------------------------------------------------------------------------------------

    async def _run_write(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> tuple[T, bool]:
            with self._database.transaction(now, writes=True) as tx:
                answer = verb(tx, *args, **kwargs)
            return answer, tx.has_written

        checks.check_now(now, manual=self._manual)
        answer, has_written = await self._run_on_thread(work)
        # A manual clock may have moved: then a job may be due without any change in the file.
        if has_written or self._manual:
            self._changes.notify()
        return answer

    async def _run_read(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            with self._database.transaction(now, writes=False) as tx:
                return verb(tx, *args, **kwargs)

        checks.check_now(now, manual=self._manual)
        answer = await self._run_on_thread(work)
        if now is not None:
            self._changes.notify()
        return answer

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[results.EnqueueResult]:
        checks.check_enqueue(queue, requests)
        return await self._run_write(now, enqueueing.enqueue, queue, requests)

    async def claim(
        self, queue: str, lease: str, limit: int, *, now: int | None = None
    ) -> results.ClaimResult:
        checks.check_claim(queue, lease, limit)
        return await self._run_write(now, claiming.claim, queue, lease, limit)

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[results.SettleResult]:
        checks.check_settle(queue, settlements)
        return await self._run_write(now, settling.settle, queue, settlements, self.limits)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> results.SettleAndClaimResult:
        checks.check_claim(queue, lease, limit)
        checks.check_settle(queue, settlements)
        return await self._run_write(
            now, claiming.settle_and_claim, queue, settlements, lease, limit, self.limits
        )

    async def finish(
        self, queue: str, id: str, end: End, revision: int, *, now: int | None = None
    ) -> results.FinishStatus:
        checks.check_finish(queue, end, id=id, revision=revision)
        return await self._run_write(now, settling.finish, queue, id, end, revision)

    # -- leases --------------------------------------------------------------------------------------

    async def grant(
        self, queues: Sequence[str], ttl: int, holder: str, *, now: int | None = None
    ) -> results.GrantResult:
        checks.check_grant(queues, ttl, holder)
        return await self._run_write(now, claiming.grant, queues, ttl, holder)

    async def renew(
        self, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None
    ) -> dict[str, results.RenewResult]:
        checks.check_renew(queues, ttl, lease=lease)
        return await self._run_write(now, claiming.renew, queues, lease, ttl)

    async def drop(
        self, queues: Sequence[str], lease: str, limit: int, *, now: int | None = None
    ) -> dict[str, int]:
        checks.check_drop(queues, limit, lease=lease)
        return await self._run_write(now, claiming.drop, queues, lease, limit)

    async def reap(self, queue: str, limit: int, *, now: int | None = None) -> list[results.ReapedJob]:
        checks.check_queue(queue, limit)
        return await self._run_write(now, claiming.reap, queue, limit)

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
    ) -> results.ReportStatus:
        checks.check_report(queue, progress, memo, id=id, fence=fence, output=output, keeps_output=True)
        reported = (progress, memo, output)
        return await self._run_write(now, settling.report, queue, id, fence, reported, self.limits)

    # -- by id ---------------------------------------------------------------------------------------

    async def cancel(
        self, queue: str, ids: Sequence[str], *, running: bool = False, now: int | None = None
    ) -> list[results.CancelStatus]:
        checks.check_cancel(queue, ids, running)
        return await self._run_write(now, by_id.cancel, queue, ids, running)

    async def amend(
        self, queue: str, id: str, patch: JobPatch, *, now: int | None = None
    ) -> results.AmendStatus:
        checks.check_amend(queue, patch, id=id)
        return await self._run_write(now, by_id.amend, queue, id, patch, self.limits)

    async def retry_failed(
        self, queue: str, ids: Sequence[str], *, delay: int = 0, now: int | None = None
    ) -> list[results.RetryFailedStatus]:
        checks.check_retry_failed(queue, ids, delay)
        return await self._run_write(now, by_id.retry_failed, queue, ids, delay)

    async def forget(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[bool]:
        checks.check_queue(queue, ids=ids)
        return await self._run_write(now, by_id.forget, queue, ids)

    async def get(self, queue: str, ids: Sequence[str], *, now: int | None = None) -> list[Slot]:
        checks.check_queue(queue, ids=ids)
        return await self._run_read(now, reading.get, queue, ids)

    async def list(
        self,
        queue: str,
        state: results.State,
        *,
        after: str | None = None,
        until: str | None = None,
        limit: int = 100,
        now: int | None = None,
    ) -> results.ListPage:
        checks.check_list(queue, state, limit, after=after, until=until)
        return await self._run_read(now, reading.list_, queue, state, after, until, limit)

    async def split(self, queue: str, parts: int, *, state: results.State | None = None) -> Sequence[str]:
        checks.check_split(queue, parts, state)
        return await self._run_read(None, reading.split, queue, parts, state)

    # -- queues --------------------------------------------------------------------------------------

    async def counts(self, queues: Sequence[str], *, now: int | None = None) -> dict[str, results.Counts]:
        checks.check_counts(queues)
        return await self._run_read(now, reading.counts, queues)

    async def queues(self) -> Sequence[results.QueueInfo]:
        return await self._run_read(None, reading.queues)

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        checks.check_configure(queue, patch, limits=True, fair=True)
        return await self._run_write(now, whole_queue.configure, queue, patch)

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> results.PruneResult:
        checks.check_queue(queue, limit)
        return await self._run_write(now, whole_queue.prune, queue, limit)

    async def export(
        self, queue: str, *, after: str | None = None, until: str | None = None, limit: int = 100
    ) -> results.ExportPage:
        checks.check_export(queue, after, until, limit)
        return await self._run_read(None, reading.export, queue, after, until, limit)

    async def import_(
        self, queue: str, records: Sequence[results.ExportRecord], *, now: int | None = None
    ) -> Sequence[results.ImportStatus]:
        checks.check_import(queue, records)
        return await self._run_write(now, enqueueing.import_, queue, records)

    # -- log and wake-ups ----------------------------------------------------------------------------

    async def events(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        id: str | None = None,
        now: int | None = None,
    ) -> results.EventPage:
        checks.check_events(queue, limit, id=id, keeps_output=True)
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
    ) -> results.WaitResult:
        checks.check_wait(queues, for_, ids, since=since, timeout=timeout)
        deadline, seen = wait.WaitDeadline(timeout), dict(since or {})
        with self._changes:
            while True:
                next_change, is_over = self._changes.next_change, deadline.has_passed
                found = await self._run_read(None, wait.observe, for_, queues, ids, seen)
                if found.changed or is_over:
                    return results.WaitResult(woken=found.changed, since=found.tokens)
                seen = {**found.tokens, **seen}
                due_in = None if self._manual else found.due_in
                await wait.sleep_until(next_change, deadline.seconds_left(due_in))
