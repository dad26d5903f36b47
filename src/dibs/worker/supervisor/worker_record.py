"""The record that a supervisor keeps of itself in the storage, for `app.workers()` and `dibs workers`.

One import writes the record, and one amend in REFRESH_EVERY seconds keeps it. Without refreshes it expires.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from attrs import define, field
from msgspec import UNSET

from dibs.client.stored_schedules import storage_now
from dibs.model.error_text import summarize_exception
from dibs.model.job import Outcome, OutcomeRetention, Slot
from dibs.model.requests import JobPatch, SettingsPatch
from dibs.model.results import ExportRecord
from dibs.model.worker_record import (
    WORKERS_QUEUE,
    WorkerRecord,
    WorkerState,
    encode_record,
    state_attributes,
)
from dibs.storage.protocol import Storage
from dibs.version import VERSION
from dibs.worker.work_plan import WorkPlan

logger = logging.getLogger("dibs.worker")

#: Seconds from the start of a worker to its record: a program that works for a moment writes none.
FIRST_AFTER: Final = 1.0
#: Seconds from the record to its first refresh: by then most workers have started all their processes.
REFRESH_AFTER: Final = 4.0
#: The longest pause between two refreshes, in seconds, and the pause in leases for shorter leases.
REFRESH_EVERY: Final = 30.0
REFRESH_LEASES: Final = 2
#: Number of refreshes between two prunes of the records of dead workers.
PRUNE_EACH: Final = 20
PRUNE_LIMIT: Final = 1000
#: Seconds that the removal of the record may take at the end.
REMOVE_TIMEOUT: Final = 2.0


@define(eq=False, kw_only=True)
class WorkerRecordKeeper:
    """Writes, refreshes and removes the record of one supervisor. An error is logged; the work goes on."""

    _storage: Storage
    _plan: WorkPlan
    _settings: Mapping[str, SettingsPatch]
    _get_state: Callable[[], WorkerState]
    #: The id of the record: names of workers need not be unique.
    _id: str = field(factory=lambda: secrets.token_hex(16), init=False)
    _started: float = field(factory=time.monotonic, init=False)
    _written: bool = field(default=False, init=False)
    #: True after an error that was logged as a warning, until the next success.
    _warned: bool = field(default=False, init=False)

    @property
    def pause(self) -> float:
        """Seconds between two refreshes."""
        return min(REFRESH_EVERY, REFRESH_LEASES * self._plan.lease)

    @property
    def ttl_ms(self) -> int:
        """Ms from a refresh to the expiry of the record: it survives one refresh that is late by a lease."""
        return round((self.pause + self._plan.lease) * 1000)

    async def keep(self) -> None:
        """Write the record, and refresh it until cancelled."""
        await asyncio.sleep(FIRST_AFTER)
        turn = 0
        while True:
            await self._try_write(prune=turn % PRUNE_EACH == 0)
            turn += 1
            await asyncio.sleep(min(REFRESH_AFTER, self.pause) if turn == 1 else self.pause)

    async def _try_write(self, *, prune: bool) -> None:
        try:
            async with asyncio.timeout(self._plan.lease):
                await self._write()
                if prune:
                    await self._storage.prune(WORKERS_QUEUE, PRUNE_LIMIT)
        except Exception as error:  # noqa: BLE001 - a storage may raise anything; a worker works without a record
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(
                level, "the record of this worker was not written, so `dibs workers` may not list it: %s",
                summarize_exception(error),
            )  # fmt: skip
            self._warned = True
        else:
            self._warned = False

    async def _write(self) -> None:
        if self._written and await self._refresh():
            return
        # Before the call: an import whose reply was lost may have taken effect, and `remove` then removes it.
        self._written = True
        now = await storage_now(self._storage, WORKERS_QUEUE)
        outcome = Outcome(
            kind="completed", fence=0, first=0, revision=0, ended_at=now, expires_at=now + self.ttl_ms,
            result=encode_record(self._make_record(now)), attributes=state_attributes(self._get_state()),
        )  # fmt: skip
        await self._storage.import_(WORKERS_QUEUE, [ExportRecord(id=self._id, slot=Slot(outcome=outcome))])

    async def _refresh(self) -> bool:
        """Amend the record, and return whether it still existed."""
        patch = JobPatch(
            attributes=state_attributes(self._get_state()), retention=OutcomeRetention(completed=self.ttl_ms)
        )
        return await self._storage.amend(WORKERS_QUEUE, self._id, patch) == "amended"

    def _make_record(self, now: int) -> WorkerRecord:
        plan = self._plan
        return WorkerRecord(
            name=plan.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            python=platform.python_version(),
            started_at=now - round((time.monotonic() - self._started) * 1000),
            lease=round(plan.lease * 1000),
            ttl=self.ttl_ms,
            queues=plan.queues,
            queue_count=len(plan.queues),
            settings={queue: _plain_settings(patch) for queue, patch in self._settings.items()},
        )

    async def remove(self) -> None:
        """Remove the record. A record that cannot be removed expires."""
        if not self._written:
            return
        try:
            async with asyncio.timeout(REMOVE_TIMEOUT):
                await self._storage.forget(WORKERS_QUEUE, [self._id])
        except Exception as error:  # noqa: BLE001 - a storage may raise anything
            logger.debug("the record of this worker was not removed: %s", summarize_exception(error))


def _plain_settings(patch: SettingsPatch) -> Mapping[str, object]:
    """Return the settings that a patch sets as values that JSON has."""
    set_ = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {name: msgspec.to_builtins(value) for name, value in set_.items() if value is not UNSET}
