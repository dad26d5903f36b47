"""Clients as threads of this process, each with its own event loop and storage at a shared location."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, TypeVar

from dibs.storage.protocol import Storage
from dibs_conformance.concurrent.actions import Program
from dibs_conformance.concurrent.calls import Call, Snapshot
from dibs_conformance.concurrent.client import Clock, run_program, take_snapshot
from dibs_conformance.concurrent.scheduler import Scheduler
from dibs_conformance.concurrent.source_lines import source_folders
from dibs_conformance.target import Locations, LoopRunner, OpenedStorage

T = TypeVar("T")
#: Seconds a round may take.
ROUND_TIMEOUT = 60.0
NAMES = ("ann", "bob", "cat", "dan")


class ThreadClient:
    """A client with its own thread, which runs submitted functions in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kit-{name}")
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

    def close(self) -> None:
        if self.opened is not None:
            self.submit(self.opened.close).result()
        if self._runner is not None:
            self.submit(self._runner.close).result()
        self._thread.shutdown()

    def run_program(self, program: Program, clock: Clock) -> list[Call]:
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
        first.submit(lambda: first.open(locations, location)).result()
        folders = source_folders(type(first.storage)) if scheduled else ()
        self.scheduler = Scheduler(folders)
        self._scheduled = scheduled
        for client in self.clients:
            client.submit(self._open_function(client, locations, location)).result()

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
        for client in self.clients:
            client.close()

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        """Read the storage while all clients are idle."""
        first = self.clients[0]
        return first.submit(
            lambda: first.run(take_snapshot(first.storage, queue, ids, now, log=log))
        ).result()

    def start(self, programs: Sequence[Program]) -> Callable[[], list[Call]]:
        """Start one program per client, all at the same time. Return a function that waits for the calls."""
        pairs = list(zip(self.clients, programs, strict=False))
        start = Barrier(len(pairs))
        futures = [
            client.submit(self._round_function(client, program.with_own_state(), start))
            for client, program in pairs
        ]
        return lambda: [call for future in futures for call in future.result(ROUND_TIMEOUT)]

    def run_round(
        self, programs: Sequence[Program], seed: int, *, during: Callable[[], None] | None = None
    ) -> list[Call]:
        """Run one program per client, all at the same time, and call `during` while they run."""
        if self._scheduled:
            names = [client.name for client, _ in zip(self.clients, programs, strict=False)]
            self.scheduler.start_round(names, seed, programs[0].hold)
        calls = self.start(programs)
        if self._scheduled:
            self.scheduler.watch_round()
        if during is not None:
            during()
        return calls()

    def _round_function(
        self, client: ThreadClient, program: Program, start: Barrier
    ) -> Callable[[], list[Call]]:
        def task() -> list[Call]:
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


@contextmanager
def thread_clients(locations: Locations, size: int, *, scheduled: bool) -> Iterator[ThreadClients]:
    """Open client threads, and close them at the end."""
    clients = ThreadClients(locations, size, scheduled=scheduled)
    try:
        yield clients
    finally:
        clients.close()
