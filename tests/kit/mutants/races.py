"""Races in the memory storage and in Postgres: each verb is correct alone, and wrong beside another call.

Most of them do one verb in two steps. L0 makes one call at a time, so it cannot find them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal

from attrs import frozen
from msgspec import UNSET
from msgspec.structs import asdict, replace

from dibs.model.events import output_event
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.limits import LIMITS
from dibs.model.requests import Settings, SettingsPatch, Settlement
from dibs.model.results import ExportRecord, PruneResult
from dibs.storage import memory
from dibs.storage.indexed import claiming, output, reading, settling, whole_queue
from dibs.storage.indexed.event_log import pack_entry
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.storage import IndexedStorage
from dibs.storage.memory import MemoryStorage
from tests.kit.mutants.planting import Patch, Plant
from tests.kit.mutants.sql import planted


@frozen
class Race:
    """A planted race. L1 must find it within `examples` examples."""

    name: str
    #: The sentence of the contract that it breaks.
    breaks: str
    plant: Plant
    where: Literal["memory", "postgres"] = "memory"
    examples: int = 100


RACES: dict[str, Race] = {}


def race(breaks: str, examples: int = 100) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        RACES[plant.__name__] = Race(plant.__name__, breaks, plant, examples=examples)
        return plant

    return register


@race("claim: max_active is exact")
def max_active_is_counted_in_a_step_of_its_own(patch: Patch) -> None:
    async def claim(self: Any, queue: str, lease: str, limit: int, *, now: int | None = None) -> Any:
        free = await self._run_read(now, lambda index: index.find_queue(queue).headroom)
        if free is not None:
            limit = min(limit, free)
        return await self._run_step(now, claim_without_max_active, queue, lease, limit)

    patch.setattr(IndexedStorage, "claim", claim)


def claim_without_max_active(index: Index, queue: str, lease: str, limit: int) -> Any:
    source = index.find_queue(queue)
    settings = source.settings
    source.settings = replace(settings, max_active=None)
    try:
        return claiming.claim(index, queue, lease, limit)
    finally:
        source.settings = settings


@race("configure: every claim that begins after it returned obeys the new settings")
def settings_are_cached_for_a_second(patch: Patch) -> None:
    def cache_of(storage: Any) -> dict[str, tuple[float, Settings]]:
        return storage.__dict__.setdefault("cached_settings", {})  # type: ignore[no-any-return]

    async def claim(self: Any, queue: str, lease: str, limit: int, *, now: int | None = None) -> Any:
        read_at, settings = cache_of(self).get(queue, (0.0, Settings()))
        if time.monotonic() > read_at + 1:
            settings = await self._run_read(now, lambda index: index.find_queue(queue).settings)
            cache_of(self)[queue] = time.monotonic(), settings
        return await self._run_step(now, claim_with_settings, queue, lease, limit, settings)

    patch.setattr(IndexedStorage, "claim", claim)


def claim_with_settings(index: Index, queue: str, lease: str, limit: int, settings: Settings) -> Any:
    source = index.find_queue(queue)
    known = source.settings
    source.settings = settings
    try:
        return claiming.claim(index, queue, lease, limit)
    finally:
        source.settings = known


@race("configure: two patches at once are both applied")
def a_configure_writes_all_settings_that_it_read(patch: Patch) -> None:
    async def configure(self: Any, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Any:
        before = await self._run_read(now, lambda index: index.find_queue(queue).settings)
        named = {name: value for name, value in asdict(patch).items() if value is not UNSET}
        after = SettingsPatch(**{**asdict(before), **named})
        return await self._run_step(now, whole_queue.configure, queue, after)

    patch.setattr(IndexedStorage, "configure", configure)


@race("accepted jobs are kept: import_ refuses an id that exists")
def an_import_checks_then_writes(patch: Patch) -> None:
    async def import_(
        self: Any, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> Any:
        found = await self._run_read(now, reading.get, queue, [record.id for record in records])
        free = [record for record, slot in zip(records, found, strict=True) if slot == EMPTY]
        imported = await self._run_step(now, import_over, queue, free)
        answers = iter(imported)
        return [next(answers) if slot == EMPTY else "exists" for slot in found]

    patch.setattr(IndexedStorage, "import_", import_)


def import_over(index: Index, queue: str, records: Sequence[ExportRecord]) -> Any:
    source = index.queue(queue)
    for record in records:
        source.put(record.id, EMPTY)
    return whole_queue.import_(index, queue, records)


@race("accepted jobs are kept: prune removes only what has expired")
def a_prune_checks_then_removes(patch: Patch) -> None:
    async def prune(self: Any, queue: str, limit: int, *, now: int | None = None) -> Any:
        ids = await self._run_read(now, expired_ids, queue, limit)
        await self._run_step(now, remove_ids, queue, ids)
        return PruneResult(outcomes=len(ids), more=len(ids) == limit)

    patch.setattr(IndexedStorage, "prune", prune)


def expired_ids(index: Index, queue: str, limit: int) -> list[str]:
    source = index.find_queue(queue)
    return [id for id in source.expired if source.slots[id].current is None][:limit]


def remove_ids(index: Index, queue: str, ids: Sequence[str]) -> None:
    if ids:
        source = index.queue(queue)
        for id in ids:
            source.put(id, EMPTY)


@race("one run at a time, fenced: the fence is checked in the same step as the change")
def a_settle_checks_its_fence_then_writes(patch: Patch) -> None:
    async def settle(
        self: Any, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> Any:
        found = await self._run_read(now, reading.get, queue, [one.id for one in settlements])
        valid = [fence_of(slot) == one.fence for slot, one in zip(found, settlements, strict=True)]
        return await self._run_step(now, settle_unchecked, queue, settlements, valid, self.limits)

    patch.setattr(IndexedStorage, "settle", settle)


def fence_of(slot: Slot) -> int:
    return slot.current.run.fence if slot.current is not None and slot.current.run is not None else 0


def settle_unchecked(
    index: Index, queue: str, settlements: Sequence[Settlement], valid: Sequence[bool], limits: Any
) -> Any:
    """Settle the runs whose fence was valid earlier, whatever their fence is now."""
    slots = index.find_queue(queue).slots
    settled = [
        replace(one, fence=fence_of(slots.get(one.id, EMPTY)) or one.fence) if is_valid else one
        for one, is_valid in zip(settlements, valid, strict=True)
    ]
    return settling.settle(index, queue, settled, limits)


RESERVED: ContextVar[int] = ContextVar("RESERVED", default=0)


@race("events: once a reader has received an offset, no event appears at or before it")
def an_entry_has_a_number_that_was_drawn_in_an_earlier_step(patch: Patch) -> None:
    run_step = MemoryStorage._run_step

    async def reserving(self: Any, now: int | None, verb: Any, *args: Any, **named: Any) -> Any:
        number = await self._run_read(now, Index.next_number)
        token = RESERVED.set(number)
        try:
            return await run_step(self, now, verb, *args, **named)
        finally:
            RESERVED.reset(token)

    def append_entry(self: Index, queue: QueueIndex, events: Any) -> None:
        queue.put_entry(pack_entry(RESERVED.get(), self.now, events))
        queue.log._newest.sort(key=lambda entry: entry.number)

    patch.setattr(memory.MemoryStorage, "_run_step", reserving)
    patch.setattr(Index, "_append_entry", append_entry)


@race("report: a report that is answered lost appends no chunk")
def a_report_checks_its_fence_in_a_step_of_its_own(patch: Patch) -> None:
    original = memory.MemoryStorage.report

    async def report(
        self: Any, queue: str, id: str, fence: int, *args: Any, now: int | None = None, **more: Any
    ) -> Any:
        (slot,) = await self.get(queue, [id], now=now)
        job = slot.current
        if not more.get("output") or job is None or job.run is None or job.run.fence != fence:
            return await original(self, queue, id, fence, *args, now=now, **more)
        await self._run_step(now, append_output, queue, job, more["output"])
        return "reported"

    patch.setattr(memory.MemoryStorage, "report", report)


def append_output(index: Index, queue: str, job: Job, chunks: Sequence[bytes]) -> None:
    assert job.run is not None
    source, event = index.find_queue(queue), output_event(job, job.run, index.now)
    report = output.reported(index.next_number(), event, tuple(chunks))
    source.put_output(job.id, output.append(source.outputs.get(job.id), report, LIMITS.output))


RACES["sql_a_transaction_does_not_announce_its_entries"] = Race(
    "sql_a_transaction_does_not_announce_its_entries",
    "events: once a reader has received an offset, no event appears at or before it",
    planted(
        "log",
        "    IF current_setting('{setting}', true) IS DISTINCT FROM me THEN",
        "    IF false THEN",
    ),
    "postgres",
)
