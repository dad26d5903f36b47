"""Tables of Arrow made of events and slots, for tests that have them as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from dibs.model.events import LogEvent
from dibs.model.job import Job, Slot, Successor
from dibs.spark.history.tables import table_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENTS = table_schema("events-read")
LIVE = pa.schema(
    [
        *((name, pa.string()) for name in ("queue", "id", "state")),
        *((name, pa.int64()) for name in ("first", "fence")),
        *((name, pa.timestamp("us", tz="UTC")) for name in ("enqueued_at", "due_at", "claimed_at")),
        ("key", pa.string()),
        ("flow", pa.string()),
        ("memo_bytes", pa.int64()),
    ]
)


def moment(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def moment_or_none(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def ms(moment: datetime) -> int:
    """Spark returns naive datetimes in the time zone of its session, which is UTC here."""
    return (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)


def events_table(events: Iterable[tuple[str, str, LogEvent]]) -> pa.Table:
    return pa.Table.from_pylist([event_row(*one) for one in events], schema=EVENTS)


def event_row(queue: str, offset: str, event: LogEvent) -> dict[str, Any]:
    names = ("kind", "id", "attempt", "fence", "holder", "first", "revision", "enqueues")
    times = ("at", "enqueued_at", "run_at", "claimed_at", "finished_at")
    return {
        "queue": queue,
        "offset": offset,
        **{name: getattr(event, name) for name in names},
        **{name: moment_or_none(getattr(event, name)) for name in times},
        "error_type": event.error.type if event.error else None,
    }


def live_table(live: Iterable[tuple[str, Slot]]) -> pa.Table:
    rows = []
    for queue, slot in live:
        if slot.current:
            rows.append(live_row(queue, slot.current.id, slot.current))
            if slot.successor:
                rows.append(live_row(queue, slot.current.id, slot.successor))
    return pa.Table.from_pylist(rows, schema=LIVE)


def live_row(queue: str, id: str, job: Job | Successor) -> dict[str, Any]:
    run = job.run if isinstance(job, Job) else None
    return {
        "queue": queue,
        "id": id,
        "state": "blocked" if isinstance(job, Successor) else "active" if run else "waiting",
        "first": job.first,
        "fence": run.fence if run else None,
        "enqueued_at": moment(job.enqueued_at),
        "due_at": moment(max(job.run_at, job.enqueued_at)),
        "claimed_at": moment(run.claimed_at) if run else None,
    }


def starts_table(starts: Mapping[str, int]) -> pa.Table:
    return pa.table({"queue": [*starts], "start": pa.array(starts.values(), pa.int64())})
