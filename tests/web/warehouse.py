"""A warehouse that is written without Spark: an hour of a queue, with an outage and an id that fails."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.history.warehouse import State
from tests.spark.warehouse_rows import add_rows

BEGIN: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTES: Final = 60
#: Minutes in which no job was claimed.
SILENT: Final = range(20, 40)


def write_warehouse(root: str | Path, queue: str = "mail", bad_id: str = "order-666") -> None:
    """Add a generation with an hour of a queue to a warehouse."""
    add_rows(
        root,
        State(source="redis://jobs.internal"),
        events=[{"queue": queue, **row} for row in _events(bad_id)],
        metrics=[{"queue": queue, **row} for row in _metrics()],
    )


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


def _events(bad_id: str) -> list[dict[str, Any]]:
    return [
        {
            "offset": f"{number:09d}",
            "kind": "completed" if number % 10 else "failed",
            "id": bad_id if number % 10 == 0 else f"order-{number}",
            "at": _at(number, 160),
            "attempt": 1,
            "fence": number,
            "enqueues": 1,
            "enqueued_at": _at(number),
            "run_at": _at(number),
            "claimed_at": _at(number, 40),
            "finished_at": _at(number, 160),
            "holder": "host:1",
            "error_type": None if number % 10 else "shop.CorruptOrder",
            "error_message": None if number % 10 else "the secret of the order",
            "error_traceback": None if number % 10 else "the secret of the traceback",
        }
        for number in range(400)
    ]


def _at(second: int, ms: int = 0) -> datetime:
    return BEGIN + timedelta(seconds=second, milliseconds=ms)
