"""Repeated waits for changes in a queue, and the progress of one enqueue, read after each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from attrs import define, field

from dibs.client.connection.queue_client import QueueClient
from dibs.errors import StorageBusy, StorageError
from dibs.model.job import Job, Outcome, Slot
from dibs.model.results import WaitResult
from dibs.model.ticket_state import ticket_state
from dibs.storage.protocol import Storage, Watch

#: Seconds of one call of `Storage.wait`, and so the longest delay that a lost wake-up causes.
WAIT_SECONDS: Final = 1.0


@define(eq=False)
class RepeatedWaits:
    """Calls of `Storage.wait` for one queue, one after another.

    Each call continues at the token of the call before, so a change between two calls ends the second one at
    once. The caller reads the state after `begin`, and again after each `next`.
    """

    _queue: str
    _watch: Watch
    #: Ids to wait for; empty for all ids of the queue.
    _ids: Sequence[str] = ()
    _since: Mapping[str, str] | None = field(default=None, init=False)

    async def begin(self, storage: Storage) -> None:
        """Get the first token, unless a call before has it."""
        if self._since is None:
            await self.next(storage, 0)

    async def next(self, storage: Storage, seconds: float | None = None) -> WaitResult | None:
        """Wait for the next change, by default for WAIT_SECONDS. Return None then if the storage failed."""
        seconds = WAIT_SECONDS if seconds is None else seconds
        try:
            result = await storage.wait(
                [self._queue], for_=self._watch, ids=self._ids, since=self._since, timeout=seconds
            )
        except StorageError:
            await asyncio.sleep(seconds)
            return None
        self._since = result.since
        return result


async def watch_progress(client: QueueClient, id: str, revision: int) -> AsyncIterator[bytes]:
    """Yield the progress that runs of the enqueue `revision` report, as JSON, until the enqueue has ended.

    The last value of a run that ends between two reads comes from its outcome.
    """
    reports, latest = RepeatedWaits(client.name, "progress", [id]), None
    while True:
        storage = await client.storage()
        await reports.begin(storage)
        slot = await _read_slot(client, id)
        state = ticket_state(slot, revision)
        # The active run may be an older one, while the enqueue is in the successor.
        is_current = slot.current is not None and slot.current.first <= revision <= slot.current.revision
        report = find_report(slot.current if is_current else state.outcome)
        if report is not None and report != latest:
            latest = report
            yield report[1]
        if state.kind != "pending":
            return
        await reports.next(storage)


async def _read_slot(client: QueueClient, id: str) -> Slot:
    """Return the slot of the id. The `call_timeout` of the app ends no wait, so read again after it."""
    while True:
        try:
            return await client.get(id)
        except StorageBusy:
            await asyncio.sleep(WAIT_SECONDS)


def find_report(part: Job | Outcome | None) -> tuple[int, bytes] | None:
    """Return the fence and the last progress of an active run, or of the run of an outcome; None for none."""
    run = part.run if isinstance(part, Job) else part
    return None if run is None or run.progress is None else (run.fence, run.progress)
