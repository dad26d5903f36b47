"""The latest runs of the ids that a report lists, with their errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from dibs.spark.report.figures.parquet import WarehouseReader, datetime_to_ms

#: Number of runs that are kept of an id: the latest ones.
RUNS_PER_ID: Final = 5
#: Characters that are kept of an error message, from its begin, and of a traceback, from its end.
MESSAGE_LENGTH: Final = 500
TRACEBACK_LENGTH: Final = 2_000
_COLUMNS: Final = (
    "id", "finished_at", "end", "attempt", "wait_ms", "run_ms", "holder",
    "error_type", "error_message", "error_traceback",
)  # fmt: skip


class RunSummary(Struct, frozen=True, kw_only=True):
    """One run of an id. Times are in ms, `finished_at` since the epoch."""

    finished_at: int
    end: str
    attempt: int | None
    wait_ms: int
    run_ms: int
    holder: str | None
    error_type: str | None
    error_message: str | None
    error_traceback: str | None


def latest_runs(
    reader: WarehouseReader, queue: str, ids: Iterable[str], *, with_error_texts: bool = True
) -> dict[str, tuple[RunSummary, ...]]:
    """Return id -> its latest RUNS_PER_ID runs, the latest first, in the order of `ids`."""
    names = _COLUMNS if with_error_texts else _COLUMNS[:-2]
    found: dict[str, list[dict[str, Any]]] = {id: [] for id in ids}
    where = pc.field("id").isin(pa.array(list(found), pa.string()))
    for batch in reader.batches("runs", queue, names, where):
        for row in batch.to_pylist():
            rows = found[row["id"]]
            rows.append(row)
            if len(rows) > 4 * RUNS_PER_ID:
                _keep_latest(rows)
    for rows in found.values():
        _keep_latest(rows)
    return {id: tuple(map(_summarize, rows)) for id, rows in found.items()}


def _keep_latest(rows: list[dict[str, Any]]) -> None:
    rows.sort(key=lambda row: (row["finished_at"], row["attempt"] or 0), reverse=True)
    del rows[RUNS_PER_ID:]


def _summarize(row: dict[str, Any]) -> RunSummary:
    values: dict[str, Any] = {name: row.get(name) for name in RunSummary.__struct_fields__}
    values["finished_at"] = datetime_to_ms(row["finished_at"])
    values["error_message"] = (row.get("error_message") or "")[:MESSAGE_LENGTH] or None
    values["error_traceback"] = (row.get("error_traceback") or "")[-TRACEBACK_LENGTH:] or None
    return RunSummary(**values)
