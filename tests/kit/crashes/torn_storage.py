"""File storages with a planted fault: a verb makes two commits, and a crash can happen between them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model.requests import JobPatch, Settings, SettingsPatch, Settlement
from dibs.model.results import ExportRecord, ImportStatus, PruneResult, SettleResult
from dibs.storage.file import FileStorage
from dibs.storage.protocol import Clock


class TornStorage(FileStorage):
    """A file storage that reports progress in a separate commit before each settlement."""

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        for one in settlements:
            await self.report(queue, one.id, one.fence, b"0", now=now)
        return await super().settle(queue, settlements, now=now)


class TornConfigure(FileStorage):
    """A file storage that resets a changed log size in a separate commit before it is set."""

    async def configure(self, queue: str, patch: SettingsPatch, *, now: int | None = None) -> Settings:
        if patch.log_bytes:
            await super().configure(queue, replace(patch, log_bytes=1_000_000), now=now)
        return await super().configure(queue, patch, now=now)


class TornPrune(FileStorage):
    """A file storage that marks a prune in progress: the queue is paused in between."""

    async def prune(self, queue: str, limit: int, *, now: int | None = None) -> PruneResult:
        await self.configure(queue, SettingsPatch(paused=True), now=now)
        pruned = await super().prune(queue, limit, now=now)
        await self.configure(queue, SettingsPatch(paused=False), now=now)
        return pruned


class TornImport(FileStorage):
    """A file storage that imports jobs without payload, and adds the payloads in a second commit."""

    async def import_(
        self, queue: str, records: Sequence[ExportRecord], *, now: int | None = None
    ) -> list[ImportStatus]:
        answers = await super().import_(queue, [without_payload(one) for one in records], now=now)
        for record, status in zip(records, answers, strict=True):
            if status == "imported" and record.slot.current is not None:
                patch = JobPatch(payload=record.slot.current.data.payload)
                await self.amend(queue, record.id, patch, now=now)
        return [*answers]


def without_payload(record: ExportRecord) -> ExportRecord:
    job = record.slot.current
    if job is None:
        return record
    return replace(
        record, slot=replace(record.slot, current=replace(job, data=replace(job.data, payload=b"")))
    )


def open_torn(folder: str, location: str, clock: Clock) -> TornStorage:
    return TornStorage(f"{folder}/{location}", clock=clock)


TORN: dict[str, type[FileStorage]] = {
    "configure": TornConfigure,
    "prune": TornPrune,
    "import_": TornImport,
}


def open_torn_verb(verb: str, folder: str, location: str, clock: Clock) -> FileStorage:
    return TORN[verb](f"{folder}/{location}", clock=clock)
