"""The clients of the crash tests: the victim process, and the survivor in a thread of this process.

The victim is killed, stopped or given errors. The survivor has its own storage object at the victim's
location. It prepares the scenes, and recovers after faults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from dibs_conformance.concurrent.client import take_snapshot
from dibs_conformance.concurrent.linearize import timeline
from dibs_conformance.concurrent.process_clients import ProcessClient
from dibs_conformance.concurrent.thread_clients import ThreadClient
from dibs_conformance.crashes.scenes import SCENES, TIMEOUT, Survivor
from dibs_conformance.report.exceptions import StorageFailed, exception_failure
from dibs_conformance.target import LevelPlan, Locations
from dibs_conformance.verbs.actions import START, ClientCall, ClientState, Program, Snapshot

#: Actions that a new process runs once before its lines and system calls are counted.
WARM_UP = (*SCENES["settle_and_claim"].setup, SCENES["settle_and_claim"].action)


class Victim:
    """The current victim process at a location. A new process is started when the old one was discarded."""

    def __init__(self, plan: LevelPlan, location: str) -> None:
        self._target, self._location = plan.locations.target, location
        self._process: ProcessClient | None = None

    @property
    def is_running(self) -> bool:
        """True if a process was started and not discarded. It may be dead."""
        return self._process is not None

    @property
    def died(self) -> bool:
        """True if the current process is dead."""
        return self._process is not None and self._process.died

    def process(self) -> ProcessClient:
        """Return the current process, or start one."""
        if self._process is None:
            self._process = ProcessClient(self._target, self._location, "vic")
            # First calls do extra work, for example load scripts. It must not count as part of a scene.
            self._process.start(Program(WARM_UP, "warm", ClientState(), START))
            self._process.wait()
        return self._process

    def discard(self) -> None:
        """Close the current process. The next `process()` starts a new one."""
        if self._process is not None:
            self._process.close()
        self._process = None


class ThreadSurvivor(Survivor):
    """A survivor that runs its programs one after the other in one thread."""

    def __init__(self, locations: Locations, location: str) -> None:
        self.client = ThreadClient("ann")
        self.client.wait_for(self.client.submit(lambda: self.client.open(locations, location)))
        self._late_calls: Future[list[ClientCall]] | None = None

    def run(self, program: Program, timeout: float) -> list[ClientCall] | None:
        future = self.client.submit(lambda: self.client.run_program(program, time.monotonic))
        if timeout >= TIMEOUT:
            return self.client.wait_for(future)
        try:
            return future.result(timeout)
        except TimeoutError:
            self._late_calls = future
            return None

    def wait_late(self) -> list[ClientCall]:
        late, self._late_calls = self._late_calls, None
        return [] if late is None else self.client.wait_for(late)

    def snapshot(self, queue: str, ids: Sequence[str], now: int, *, log: bool) -> Snapshot:
        client = self.client
        return client.wait_for(
            client.submit(lambda: client.run(take_snapshot(client.storage, queue, ids, now, log=log)))
        )

    def close(self) -> None:
        self.client.close()


@contextmanager
def thread_survivor(locations: Locations, location: str) -> Iterator[ThreadSurvivor]:
    """Open a survivor at a location, and close it at the end.

    An exception of the storage becomes a StorageFailed with the calls of the newest history.
    """
    opened = ThreadSurvivor(locations, location)
    try:
        yield opened
    except Exception as error:  # noqa: BLE001 - the storage may raise anything
        raise StorageFailed(exception_failure(error, timeline(opened.newest_rounds))) from None
    finally:
        opened.close()
