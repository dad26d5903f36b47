"""Clients as threads of this process, each with its own event loop and storage at a shared location.

On Postgres, their calls also interleave inside functions. A second connection locks a table until several
calls wait for that lock, each at its first write to the table; then all continue at the same time. pg_locks
shows which calls wait, as in the isolation tester of Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from random import Random
from threading import Barrier, Thread
from typing import Any, TypeVar
from urllib.parse import parse_qs

from dibs.storage.protocol import Storage
from dibs.storage.registry import parse_scheme
from dibs_conformance.concurrent.client import Clock, run_program, take_snapshot
from dibs_conformance.concurrent.scheduler import Deadlock, Scheduler, source_folders
from dibs_conformance.loop_runner import LIMITS, LoopRunner
from dibs_conformance.report.exceptions import StorageFailed, hang_failure, thread_frames
from dibs_conformance.target import Locations, OpenedStorage
from dibs_conformance.verbs.actions import ClientCall, Program, Snapshot

T = TypeVar("T")
NAMES = ("ann", "bob", "cat", "dan")


class ClientThread:
    """A thread that runs submitted functions in order.

    It is a daemon, so that a call that never returns does not keep the kit from ending, as a
    ThreadPoolExecutor does.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
                future.set_exception(error)

        self._tasks.put(task)
        return future

    def shutdown(self, timeout: float) -> None:
        """End the thread after its last function. Wait for at most `timeout` seconds."""
        self._tasks.put(None)
        self._thread.join(timeout)


class ThreadClient:
    """A client with its own thread, which runs submitted functions in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ClientThread(f"kit-{name}")
        self._is_lost = False
        self.opened: OpenedStorage | None = None
        self._runner: LoopRunner | None = None

    @property
    def storage(self) -> Storage:
        assert self.opened is not None  # noqa: S101 - open() was called before
        return self.opened.storage

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._thread.submit(work)

    def open(self, locations: Locations, location: str) -> None:
        self._runner = self._runner or LoopRunner()
        self.opened = OpenedStorage(locations, self._runner, location)

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def abandon(self) -> None:
        """Do not use the thread again, because a call in it never returns."""
        self._is_lost = True

    def wait_for(self, future: Future[T], seconds: float | None = None) -> T:
        """Return the result of a submitted function. Raise StorageFailed if it does not end in time.

        After that, the thread is not used again, and `close` does nothing. The default is LIMITS.call and
        a second, so that a call that waits at an await is reported by its own loop.
        """
        limit = LIMITS.call + 1 if seconds is None else seconds
        try:
            return future.result(limit)
        except FutureTimeout:
            if future.done():
                raise
            self._is_lost = True
            raise StorageFailed(hang_failure(thread_frames(self._thread.ident), limit)) from None

    def close(self) -> None:
        if self._is_lost:
            return
        try:
            if self.opened is not None:
                self.wait_for(self.submit(self.opened.close))
            if self._runner is not None:
                self.wait_for(self.submit(self._runner.close))
        finally:
            self._thread.shutdown(0 if self._is_lost else LIMITS.call)

    def run_program(self, program: Program, clock: Clock) -> list[ClientCall]:
        return self.run(run_program(self.storage, self.name, program, clock))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._runner is not None  # noqa: S101 - open() was called before
        return self._runner.run(work)


class ThreadClients:
    """Client threads at one location. With `scheduled`, a scheduler decides which thread runs."""

    def __init__(self, locations: Locations, size: int, *, scheduled: bool) -> None:
        location = self.location = locations.new()
        self.clients = [ThreadClient(name) for name in NAMES[:size]]
        first = self.clients[0]
        first.wait_for(first.submit(lambda: first.open(locations, location)))
        folders = source_folders(type(first.storage)) if scheduled else ()
        self.scheduler = Scheduler(folders)
        self._scheduled = scheduled
        for client in self.clients:
            client.wait_for(client.submit(self._open_function(client, locations, location)))

    def _open_function(self, client: ThreadClient, locations: Locations, location: str) -> Callable[[], None]:
        def open_client() -> None:
            # The first storage was opened to find the folders to trace. Its threads are not traced, so reopen
            # it.
            if client.opened is not None:
                client.opened.close()
            with self.scheduler.running_as(client.name):
                client.open(locations, location)

        return open_client

    def close(self) -> None:
        close_all(client.close for client in self.clients)

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        """Read the storage while all clients are idle."""
        first = self.clients[0]
        return first.wait_for(
            first.submit(lambda: first.run(take_snapshot(first.storage, queue, ids, now, log=log)))
        )

    def start(self, programs: Sequence[Program]) -> Callable[[], list[ClientCall]]:
        """Start one program per client, all at the same time. Return a function that waits for the calls."""
        pairs = list(zip(self.clients, programs, strict=False))
        start = Barrier(len(pairs))
        futures = [
            client.submit(self._round_function(client, program.with_own_state(), start))
            for client, program in pairs
        ]
        return lambda: [
            call
            for (client, _), future in zip(pairs, futures, strict=True)
            for call in client.wait_for(future, LIMITS.call + 1)
        ]

    def run_round(
        self, programs: Sequence[Program], seed: int, *, during: Callable[[], None] | None = None
    ) -> list[ClientCall]:
        """Run one program per client, all at the same time, and call `during` while they run."""
        if self._scheduled:
            names = [client.name for client, _ in zip(self.clients, programs, strict=False)]
            self.scheduler.start_round(names, seed, programs[0].hold)
        calls = self.start(programs)
        if self._scheduled:
            self._watch_round()
        if during is not None:
            during()
        return calls()

    def _watch_round(self) -> None:
        """Wait for the end of the round. Without one, report the call of the first client that still runs."""
        try:
            self.scheduler.watch_round(LIMITS.call + 1)
        except Deadlock:
            stuck = [client for client in self.clients if client.name in self.scheduler.running_clients]
            for client in stuck:
                client.abandon()
            frames = thread_frames(stuck[0].ident) if stuck else []
            raise StorageFailed(hang_failure(frames, LIMITS.call)) from None

    def _round_function(
        self, client: ThreadClient, program: Program, start: Barrier
    ) -> Callable[[], list[ClientCall]]:
        def task() -> list[ClientCall]:
            if not self._scheduled:
                start.wait()
                return client.run_program(program, self.scheduler.next_tick)
            self.scheduler.enter_round(client.name)
            try:
                with self.scheduler.running_as(client.name):
                    return client.run_program(program, self.scheduler.next_tick)
            finally:
                self.scheduler.leave_round(client.name)

        return task


def close_all(closings: Iterable[Callable[[], None]]) -> None:
    """ClientCall all functions, also after one has raised. Then raise the first exception."""
    with ExitStack() as stack:
        for close in reversed([*closings]):
            stack.callback(close)


@contextmanager
def thread_clients(locations: Locations, size: int, *, scheduled: bool) -> Iterator[ThreadClients]:
    """Open client threads, and close them at the end."""
    clients = ThreadClients(locations, size, scheduled=scheduled)
    try:
        yield clients
    finally:
        clients.close()


#: Seconds to wait until all calls are blocked.
MAX_WAIT = 0.5
LIST_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
COUNT_WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE NOT granted AND nspname = %s
"""


def is_postgres(target: object) -> bool:
    """Return whether the target is a Postgres URL."""
    return isinstance(target, str) and parse_scheme(target) in ("postgresql", "postgres")


class LockedClients:
    """Thread clients whose calls are stopped at a table lock for a short time."""

    def __init__(self, clients: ThreadClients, connection: Any, schema: str) -> None:
        self._clients, self._connection, self._schema = clients, connection, schema
        self._tables = [row[0] for row in connection.execute(LIST_TABLES, [schema])]
        #: Number of calls that waited for the lock.
        self.blocked_calls = 0

    def run_round(self, programs: Sequence[Program], seed: int) -> list[ClientCall]:
        """Run one program per client. A random table is locked until the calls wait for it."""
        if len(programs) == 1:
            return self._clients.run_round(programs, seed)
        table = Random(seed).choice(self._tables)
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(f'LOCK TABLE "{self._schema}"."{table}" IN EXCLUSIVE MODE')
            calls = self._clients.start(programs)
            self._wait_for_blocked(len(programs))
        return calls()

    def _wait_for_blocked(self, limit: int) -> None:
        """Wait until `limit` calls wait for the lock, for at most `MAX_WAIT` seconds."""
        end, waiting = time.monotonic() + MAX_WAIT, 0
        while waiting < limit and time.monotonic() < end:
            [(waiting,)] = self._connection.execute(COUNT_WAITING, [self._schema])
            time.sleep(0.001)
        self.blocked_calls += waiting

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        """Read the storage while all clients are idle."""
        return self._clients.snapshot(queue, ids, now, log=log)


@contextmanager
def locked_clients(clients: ThreadClients, location: str) -> Iterator[LockedClients]:
    """Open a second connection to the location, for the locks."""
    import psycopg  # noqa: PLC0415 - needed for Postgres only, whose storage requires psycopg, too

    address, _, query = location.partition("?")
    with psycopg.connect(address, autocommit=True) as connection:
        yield LockedClients(clients, connection, parse_qs(query)["schema"][0])
