"""The figures of ids: the slowest, those that fail and wait most, and the latest runs.

For the whole history the figures come from the table `ids`. For a shorter range they are counted from its
runs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, field
from msgspec import Struct
from msgspec.structs import replace

from dibs.spark.history.tables import JOB_ENDS, merge_ids
from dibs.spark.report.figures.findings import FAILURE_ENDS, PoisonId, find_poison_ids
from dibs.spark.report.figures.parquet import WarehouseReader, best_rows, datetime_to_ms, ms_to_timestamp

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


#: Number of ids listed as the slowest, as the most active, and as those with most failures.
TOP_IDS: Final = 10
#: Number of ids, those with most attempts, that are checked for failing nearly every time.
POISON_CANDIDATES: Final = 200
#: Number of runs up to which the ids of a range are counted in memory. The runs of a longer range are first
#: divided by id into temporary files of about this size, at most MAX_PARTS.
RUNS_PER_PART: Final = 100_000
MAX_PARTS: Final = 256
#: Groups are merged when this many have come since the last merge.
_MERGE_AT: Final = 1 << 16


class IdSummary(Struct, frozen=True, kw_only=True):
    """An id in one of the tables of ids. Times are ms."""

    id: str
    attempts: int
    completed: int
    failed: int
    #: Attempts that failed, were retried, stalled or timed out.
    failures: int
    merged: int
    longest_wait_ms: int
    longest_run_ms: int
    run_ms: int


class TopIds(Struct, frozen=True, kw_only=True):
    """The ids of a queue that a report lists."""

    slowest: tuple[IdSummary, ...] = ()
    hottest: tuple[IdSummary, ...] = ()
    #: The ids with most failures.
    failing: tuple[IdSummary, ...] = ()

    def names(self) -> Iterator[str]:
        """Yield the listed ids; an id may come several times."""
        yield from (row.id for row in (*self.failing, *self.slowest, *self.hottest))


def top_ids(reader: WarehouseReader, queue: str) -> TopIds:
    """Return the ids of the whole history, from the table `ids`."""
    own = [name for name in IdSummary.__struct_fields__ if name != "failures"]
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {
        order: [] for order in (("longest_run_ms",), ("attempts",), FAILURE_ENDS)
    }
    for rows in _merged_ids(reader, queue, [*dict.fromkeys((*own, *FAILURE_ENDS))]):
        for order, best in found.items():
            best_rows(best, rows, order, TOP_IDS)
    slowest, hottest, failing = (
        tuple(
            IdSummary(**{name: row[name] for name in own}, failures=sum(row[end] for end in FAILURE_ENDS))
            for row in best
        )
        for best in found.values()
    )
    return TopIds(slowest=slowest, hottest=hottest, failing=tuple(row for row in failing if row.failures))


def _merged_ids(
    reader: WarehouseReader, queue: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch | pa.Table]:
    """Yield the columns of the ids of a queue, with one row for each id."""
    batches = reader.batches("ids", queue, columns)
    if reader.file_count("ids", queue) == 1:
        # In a single file each id has one row.
        yield from batches
        return
    rows = reader.row_count("ids", queue)
    for part in _divide_by_id(batches, min(MAX_PARTS, -(-rows // RUNS_PER_PART))):
        sums = _IdSums(merge_ids)
        for batch in part:
            sums.add(pa.Table.from_batches([batch]))
        yield from sums.tables()


def top_ids_since(reader: WarehouseReader, queue: str, begin: int, runs: int) -> TopIds:
    """Return the ids of the runs that ended at `begin` (ms) or later. `runs` is about their number."""
    found: dict[str, list[dict[str, Any]]] = {"longest_run_ms": [], "attempts": [], "failures": []}
    where = pc.field("finished_at") >= ms_to_timestamp(begin)
    batches = reader.batches("runs", queue, _RUN_COLUMNS, where, since=begin)
    for part in _divide_by_id(batches, min(MAX_PARTS, -(-runs // RUNS_PER_PART))):
        sums = _IdSums(_merge)
        for batch in part:
            sums.add(_columns_of_ids(batch))
        for table in sums.tables():
            for order, rows in found.items():
                best_rows(rows, table, (order,), TOP_IDS)
    slowest, hottest, failing = (
        tuple(IdSummary(**{name: row[name] for name in IdSummary.__struct_fields__}) for row in rows)
        for rows in found.values()
    )
    return TopIds(slowest=slowest, hottest=hottest, failing=tuple(row for row in failing if row.failures))


def _divide_by_id(batches: Iterable[pa.RecordBatch], parts: int) -> Iterator[Iterable[pa.RecordBatch]]:
    """Yield the runs in `parts` parts. All runs of an id are in the same part."""
    if parts <= 1:
        yield batches
        return
    with tempfile.TemporaryDirectory(prefix="dibs-report-") as folder:
        files = [Path(folder, f"{part}.arrow") for part in range(parts)]
        with ExitStack() as stack:
            writers: list[pa.RecordBatchStreamWriter] = []
            for batch in batches:
                writers = writers or [
                    stack.enter_context(pa.ipc.new_stream(str(file), batch.schema)) for file in files
                ]
                for part, its in _split_batch(batch, parts):
                    writers[part].write_batch(its)
        for file in files if writers else ():
            with pa.ipc.open_stream(str(file)) as reader:
                yield reader
            file.unlink()


def _split_batch(batch: pa.RecordBatch, parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    encoded = batch.column("id").dictionary_encode()
    hashes = pa.array([crc32(id.encode()) % parts for id in encoded.dictionary.to_pylist()])
    part_of = hashes.take(encoded.indices)
    order = pc.sort_indices(part_of)
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(part_of).to_pylist()}
    ordered, begin = batch.take(order), 0
    for part in sorted(counts):
        yield part, ordered.slice(begin, counts[part])
        begin += counts[part]


_RUN_COLUMNS: Final = ("id", "end", "enqueues", "wait_ms", "run_ms", "finished_at")
#: Column of IdSummary -> the function that merges its values.
_MERGES: Final = {
    **dict.fromkeys(("attempts", "completed", "failed", "failures", "merged", "run_ms"), "sum"),
    **dict.fromkeys(("longest_wait_ms", "longest_run_ms"), "max"),
}


@define
class _IdSums:
    """The sums of each id while rows are read."""

    #: Returns a table with one row for each id.
    _merge: Callable[[pa.Table], pa.Table]
    _groups: list[pa.Table] = field(factory=list)
    _fresh: int = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows to the sums of their ids."""
        self._groups.append(self._merge(rows))
        self._fresh += self._groups[-1].num_rows
        if self._fresh > _MERGE_AT:
            self._groups, self._fresh = [*self.tables()], 0

    def tables(self) -> Iterator[pa.Table]:
        """Yield one table with one row for each id, or none without rows."""
        if self._groups:
            yield self._merge(pa.concat_tables(self._groups))


def _columns_of_ids(batch: pa.RecordBatch) -> pa.Table:
    """Return the columns of IdSummary for single runs."""
    end = batch.column("end")
    merged = pc.if_else(pc.is_in(end, pa.array(JOB_ENDS)), pc.subtract(batch.column("enqueues"), 1), 0)
    columns = {
        "id": batch.column("id"),
        "attempts": pa.repeat(1, batch.num_rows),
        "completed": pc.equal(end, "completed"),
        "failed": pc.equal(end, "failed"),
        "failures": pc.is_in(end, pa.array(FAILURE_ENDS)),
        "merged": pc.fill_null(merged, 0),
        "longest_wait_ms": batch.column("wait_ms"),
        "longest_run_ms": batch.column("run_ms"),
        "run_ms": batch.column("run_ms"),
    }
    return pa.table(
        {name: column if name == "id" else column.cast(pa.int64()) for name, column in columns.items()}
    )


def _merge(rows: pa.Table) -> pa.Table:
    """Return one row for each id of rows with the columns of IdSummary."""
    groups = rows.group_by("id").aggregate([*_MERGES.items()])
    return groups.select(["id", *(f"{name}_{how}" for name, how in _MERGES.items())]).rename_columns(
        ["id", *_MERGES]
    )


def poison_ids(reader: WarehouseReader, queue: str, failures: int) -> list[PoisonId]:
    """Return the ids of a queue that fail nearly every time. `failures` are all failures of the queue."""
    if not failures:
        return []
    bad = pc.field(FAILURE_ENDS[0])
    for end in FAILURE_ENDS[1:]:
        bad += pc.field(end)
    columns: Sequence[str] = ("id", "attempts", "completed", *FAILURE_ENDS)
    suspects: list[dict[str, Any]] = []
    for rows in _merged_ids(reader, queue, columns):
        best_rows(suspects, rows.filter(bad * 2 > pc.field("attempts")), ("attempts",), POISON_CANDIDATES)
    return [_with_error_type(reader, poison) for poison in find_poison_ids(queue, suspects, failures)]


def _with_error_type(reader: WarehouseReader, poison: PoisonId) -> PoisonId:
    """Return the poison id with `error_type` set to the most frequent class of its errors."""
    its = (pc.field("id") == poison.id) & pc.field("error_type").is_valid()
    errors = Counter(
        error for _, error in reader.column_pairs("runs", poison.queue, ("id", "error_type"), its)
    )
    return replace(poison, error_type=errors.most_common(1)[0][0] if errors else None)
