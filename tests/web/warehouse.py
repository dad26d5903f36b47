"""A warehouse that is written without Spark: an hour of a queue, with an outage and an id that fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dibs.spark.history.tables import ATTEMPT_ENDS, IDS_COLUMNS, METRICS_COLUMNS
from dibs.spark.history.warehouse.manifest import WarehouseState
from dibs.spark.history.warehouse.warehouse import Warehouse

BEGIN: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTES: Final = 60
#: Minutes in which no job was claimed.
SILENT: Final = range(20, 40)
TYPES: Final = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
RUNS_COLUMNS: Final = {"id": "string", "due_at": "timestamp", "wait_ms": "bigint", "run_ms": "bigint"} | {
    "finished_at": "timestamp", "attempt": "bigint", "end": "string", "holder": "string",
    "error_type": "string", "error_message": "string", "error_traceback": "string",
}  # fmt: skip


def write_warehouse(root: str | Path, queue: str = "mail", bad_id: str = "order-666") -> None:
    """Add a generation with an hour of a queue to a warehouse."""
    with Warehouse(root).open_draft() as draft:
        for name, columns, rows in (
            ("metrics", METRICS_COLUMNS, _metrics()),
            ("runs", RUNS_COLUMNS, _runs(bad_id)),
            ("ids", IDS_COLUMNS, _ids(bad_id)),
        ):
            staged = draft.staging(name)
            folder = staged / f"queue={queue}" / "date=2026-11-20"
            folder.mkdir(parents=True)
            schema = pa.schema([(column, TYPES[kind]) for column, kind in columns.items()])
            pq.write_table(pa.Table.from_pylist(rows, schema), folder / "part-0.parquet")
            draft.add(name, name)
        draft.commit(WarehouseState(source="redis://jobs.internal", horizon=0))


def _metrics() -> list[dict[str, Any]]:
    rows = []
    for minute in range(MINUTES):
        ended = 0 if minute in SILENT else 10
        rows.append(
            dict.fromkeys(ATTEMPT_ENDS, 0)
            | {
                "minute": BEGIN + timedelta(minutes=minute),
                "arrivals": 10,
                "claims": ended,
                "attempts": ended,
                "completed": ended and 9,
                "failed": ended and 1,
                "backlog": 7,
                "backlog_due": 7 if minute in SILENT else 0,
                "active": 0.5,
                "active_peak": 2,
                "run_p95_ms": 120,
                "wait_p95_ms": 40,
            }
        )
    return rows


def _runs(bad_id: str) -> list[dict[str, Any]]:
    return [
        {
            "id": bad_id if number % 10 == 0 else f"order-{number}",
            "due_at": BEGIN + timedelta(seconds=number),
            "wait_ms": 40,
            "run_ms": 120,
            "finished_at": BEGIN + timedelta(seconds=number),
            "attempt": 1,
            "end": "completed" if number % 10 else "failed",
            "holder": "host:1",
            "error_type": None if number % 10 else "shop.CorruptOrder",
            "error_message": None if number % 10 else "the secret of the order",
            "error_traceback": None if number % 10 else "the secret of the traceback",
        }
        for number in range(400)
    ]


def _ids(bad_id: str) -> list[dict[str, Any]]:
    plain = dict.fromkeys(ATTEMPT_ENDS, 0) | {"merged": 0, "longest_wait_ms": 40, "longest_run_ms": 120}
    return [
        {**plain, "id": bad_id, "attempts": 40, "failed": 40, "run_ms": 4800},
        *({**plain, "id": f"order-{n}", "attempts": 1, "completed": 1, "run_ms": 120} for n in range(1, 10)),
    ]
