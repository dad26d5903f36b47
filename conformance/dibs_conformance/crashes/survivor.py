"""The survivor of the crash tests: the client that no fault hits, in a thread of this process.

It has its own storage object at the victim's location. It prepares the scenes, and recovers after faults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from dibs_conformance.concurrent.client import take_snapshot
from dibs_conformance.concurrent.thread_clients import ThreadClient
from dibs_conformance.concurrent.timeline import timeline
from dibs_conformance.crashes.scenes import TIMEOUT, Survivor
from dibs_conformance.report.exceptions import StorageFailed, exception_failure
from dibs_conformance.target import Locations
from dibs_conformance.verbs.actions import Program
from dibs_conformance.verbs.calls import ClientCall, Snapshot


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
