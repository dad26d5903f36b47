"""Reading the output of a job: `ticket.output()` and `queue.output(id)`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from attrs import frozen

from dibs.client.calls.run_output import ChunkKind, split_chunk
from dibs.client.connection.outcome_wait import RepeatedWaits
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import utc_datetime
from dibs.client.status import decode_or_raw
from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.rules import ticket_state

PAGE_SIZE = 100


@frozen(kw_only=True)
class Chunk:
    """A part of the output of a job: what one call of `current_job().write` wrote, or a record."""

    offset: str
    """Position in the output: `ticket.output(after=offset)` continues after this chunk.

    It fits the `id:` of a server-sent event, so `Last-Event-ID` is a value for `after`.
    """
    at: datetime
    """Time at which the storage got the chunk, in UTC."""
    attempt: int
    """Number of the run that wrote it, from 1. A change tells that a new run has begun."""
    kind: ChunkKind
    """The value "value" for what `write` wrote, "log" for a record that `capture_logs` took."""
    value: Any
    """The value, as the serde of the queue decodes it.

    That of a record is a dict with `time`, `level`, `logger`, `message`, and `exception` if there is one.
    """
    missing: bool = False
    """True if chunks before this one were removed: an id keeps at most 1 MiB of output."""


async def read_output(
    client: QueueClient, id: str, revision: int | None, after: str | None, *, follow: bool
) -> AsyncIterator[Chunk]:
    """Yield the output of an id, of the enqueue `revision` alone if there is one.

    With `follow`, go on until that enqueue has ended, or until the id has no job.
    """
    reports = RepeatedWaits(client.name, "progress", [id])
    offset = "" if after is None else after
    missing = False
    while True:
        storage = await client.storage()
        if follow:
            await reports.begin(storage)
        # The state comes first: a run that has ended has written its last chunk.
        has_ended = not follow or _has_ended(await client.get(id), revision)
        while True:
            page = await storage.events(client.name, after=offset, limit=PAGE_SIZE, id=id)
            missing, offset = missing or page.fell_off, page.offset
            for position, event in page.events:
                if revision is None or event.first <= revision <= event.revision:
                    yield _chunk(client, position, event, missing=missing)
                    missing = False
            if not page.events:
                break
        if has_ended:
            return
        await reports.next(storage)


def _has_ended(slot: Slot, revision: int | None) -> bool:
    return slot.current is None if revision is None else ticket_state(slot, revision).kind != "pending"


def _chunk(client: QueueClient, offset: str, event: LogEvent, *, missing: bool) -> Chunk:
    kind, raw = split_chunk(event.result or b"")
    return Chunk(
        offset=offset,
        at=utc_datetime(event.at),
        attempt=event.attempt,
        kind=kind,
        value=decode_or_raw(client, raw),
        missing=missing,
    )
