"""A warehouse: the tables of the history, in the format of Delta Lake, in a folder or an object store.

    warehouse/
      events/    append-only: each commit adds the events of one increment
      live/      replaced by each increment: the jobs that were live at its read of the storage
      metrics/   the minutes that an increment has counted again are replaced in one commit

Each commit holds a State in its metadata: up to where its rows go. So a kill leaves the rows and their
position, or none of both. A commit succeeds only as the next version of the table that this process has
opened: of two writers, the second gets WarehouseBusy and repeats nothing.

An increment commits to `events`, then to `live` and `metrics`. If it is killed in between, the tables are one
increment apart, each complete, and the next increment makes up for it: it counts all events that the state of
`metrics` does not have yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from attrs import define
from msgspec import Struct

from dibs.errors import ConfigurationError, Refused, StorageDamaged, StorageTooNew, StorageUnavailable
from dibs.model.requests import StartRate
from dibs.spark.history.storage_reads import LogMark
from dibs.spark.history.tables import STORED_TABLES, TABLES, TableRows, table_schema

if find_spec("deltalake") is None:
    raise ConfigurationError("the history needs deltalake: pip install 'dibs[history]'")

from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

#: Format of the tables. Increase it with every change that older code would misread.
FORMAT: Final = 1
#: Name of the state in the metadata of a commit.
STATE_KEY: Final = "dibs"
#: Properties of the tables. Commits and replaced files are kept for as long as readers may need them;
#: deltalake writes a checkpoint every 100 commits, and removes older commits then.
_PROPERTIES: Final[dict[str, str | None]] = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
#: Rows of one row group. Readers skip row groups by time, and hold one in memory.
_WRITER: Final = WriterProperties(compression="ZSTD", max_row_group_size=1 << 16)
#: Versions of `metrics` between two maintenances, which merge small files and remove replaced ones.
MAINTAIN_EVERY: Final = 32
#: Bytes up to which files are merged. A file is written again at most this often, however long the history
#: is.
TARGET_BYTES: Final = 32 << 20
#: Hours for which a replaced file is kept for its readers, and one of a killed writer.
KEEP_HOURS: Final = 1
KEEP_ORPHANS_HOURS: Final = 24
DAY_MS: Final = 24 * 3_600_000


class WarehouseBusy(Refused):
    """Another process writes to the warehouse. Nothing was changed; a later increment may succeed."""


class LogGap(Struct, frozen=True, kw_only=True):
    """A gap in the history of a queue: events were trimmed before they were read. Found at `at`, ms."""

    queue: str
    at: int


class State(Struct, frozen=True, kw_only=True):
    """The state in a commit: up to where the rows of the table go."""

    format: int = FORMAT
    #: Number of the latest increment with events. `events` has it in a column.
    increment: int = 0
    #: URL of the storage without secrets, at the last increment; empty before the first one.
    source: str = ""
    #: The newest event that the increments know the place of. Only in `events`.
    mark: LogMark | None = None
    #: Queue -> offset at which the next increment starts. Only in `events`.
    offsets: dict[str, str] = {}
    gaps: tuple[LogGap, ...] = ()
    #: Queue -> its limit on the starts of runs, if it has one. The findings of the report need it.
    rates: dict[str, StartRate] = {}
    #: Newest time in the tables, ms. Gauges are known until then. Only in `live` and `metrics`.
    horizon: int = 0
    #: Time at which an increment wrote `live`, ms. `metrics` that were counted with it have the same.
    written_at: int = 0
    #: Queue with many live jobs -> time at which they were read, ms. Only in `live`.
    read_at: dict[str, int] = {}
    #: Version of `live` with which `metrics` were counted.
    live: int = 0


@define
class HistoryTable:
    """A table of Delta Lake at the version that was newest when it was opened."""

    name: str
    uri: str
    delta: DeltaTable
    state: State
    options: Mapping[str, str]

    @classmethod
    def open(
        cls, location: str, name: str, *, create: bool = False, version: int | None = None
    ) -> HistoryTable:
        """Open a table of a warehouse. Raise Refused if there is none, unless `create` is true."""
        path, options = f"{location}/{name}", _storage_options(location)
        try:
            if create:
                made = DeltaTable.create(
                    path,
                    table_schema(name),
                    mode="ignore",
                    configuration=_PROPERTIES,
                    storage_options=options,
                )
                return cls(name, path, made, _find_state(made, path), options)
            if not DeltaTable.is_deltatable(path, options):
                raise Refused(
                    f"no warehouse in {location}; create one with dibs spark history --warehouse {location}",
                    field="warehouse",
                )
            found = DeltaTable(path, version=version, storage_options=options)
        except (DeltaError, OSError) as error:
            raise StorageUnavailable(f"cannot open the table {path}: {_one_line(error)}") from error
        return cls(name, path, found, _find_state(found, path), options)

    def rows(self, where: str = "", column: str = "", least: object = None) -> TableRows:
        """Return the rows that satisfy `where`.

        Files are left out if all their values of `column` are less than `least`.
        """
        files = self._files(column, least)
        return TableRows(
            table=self.name,
            root=self.uri,
            paths=files["path"].to_pylist(),
            bytes=pc.sum(files["size_bytes"]).as_py() or 0,
            where=where,
            options=self.options,
        )

    def count(self, column: str = "", least: object = None) -> int:
        """Return the number of rows in the files that `rows` with these arguments has."""
        return pc.sum(self._files(column, least)["num_records"]).as_py() or 0

    def _files(self, column: str, least: object) -> pa.Table:
        files = pa.table(self.delta.get_add_actions(flatten=True))
        if least is None or f"max.{column}" not in files.column_names:
            return files
        highest = files[f"max.{column}"]
        at_least = pc.greater_equal(highest, pa.scalar(least).cast(highest.type))
        return files.filter(pc.fill_null(at_least, True))  # noqa: FBT003

    def append(self, state: State, rows: TableRows, **constants: int) -> None:
        """Add rows, with columns that have the same value in all of them, and the state behind them.

        Raise WarehouseBusy, and change nothing, if the table has a newer version than the opened one.
        """
        self._commit(state, rows, constants, mode="append")

    def replace(self, state: State, rows: TableRows, predicate: str | None = None) -> None:
        """Replace all rows, or those that satisfy a predicate, and the state behind them.

        Raise WarehouseBusy, and change nothing, if the table has a newer version than the opened one.
        """
        self._commit(state, rows, {}, mode="overwrite", predicate=predicate)

    def _commit(self, state: State, rows: TableRows, constants: Mapping[str, int], **how: Any) -> None:
        reader = pa.RecordBatchReader.from_batches(table_schema(self.name), _batches(rows, constants))
        try:
            write_deltalake(
                self.delta,
                reader,
                **how,
                writer_properties=_WRITER,
                commit_properties=_properties(state),
            )
        except CommitFailedError as error:
            raise WarehouseBusy(
                f"another process has written to {self.uri} at the same time; this increment "
                "changed nothing in it. Repeat it",
                field="warehouse",
            ) from error
        self.state = state

    def maintain(self) -> None:
        """Merge small files, and remove files that were replaced or that a killed writer has left."""
        properties = _properties(self.state)
        self.delta.optimize.compact(
            target_size=TARGET_BYTES, writer_properties=_WRITER, commit_properties=properties
        )
        for hours, full in ((KEEP_HOURS, False), (KEEP_ORPHANS_HOURS, True)):
            self.delta.vacuum(
                hours,
                dry_run=False,
                enforce_retention_duration=False,
                full=full,
                commit_properties=properties,
            )

    def delete_before(self, column: str, moment: int) -> None:
        """Delete the rows whose time (ms) in a column is before `moment`, if any is a day older."""
        files = pa.table(self.delta.get_add_actions(flatten=True))
        oldest = pc.min(files[f"min.{column}"]).as_py() if f"min.{column}" in files.column_names else None
        if oldest is not None and oldest.timestamp() * 1000 < moment - DAY_MS:
            self.delta.delete(f"{column} < '{iso_time(moment)}'", commit_properties=_properties(self.state))


class Warehouse:
    """The tables of a warehouse, opened to read them or to add an increment.

    `metrics` is opened first and `events` last, which are committed in the opposite order. So `events` and
    `live` have at least what `metrics` counts.
    """

    def __init__(self, location: str | Path, *, create: bool = False) -> None:
        self.location: str = warehouse_location(location)
        self.metrics: HistoryTable = HistoryTable.open(self.location, "metrics", create=create)
        self.live: HistoryTable = HistoryTable.open(self.location, "live", create=create)
        self.events: HistoryTable = HistoryTable.open(self.location, "events", create=create)

    @property
    def state(self) -> State:
        """The state of `metrics`."""
        return self.metrics.state

    @property
    def generation(self) -> int:
        """The version of `metrics`; 0 before the first increment."""
        return self.metrics.delta.version()

    def counted_live(self) -> HistoryTable:
        """Return `live` at the version with which `metrics` were counted."""
        version = self.state.live
        if version == self.live.delta.version():
            return self.live
        return HistoryTable.open(self.location, "live", version=version)

    def maintain(self, before: int, keep_ms: int | None, now: int) -> None:
        """Delete what is older than `keep_ms`, and merge and remove files every MAINTAIN_EVERY versions.

        `before` is the generation before the increment. Another writer at the same time is no error.
        """
        try:
            if keep_ms is not None:
                self.events.delete_before("at", now - keep_ms)
                self.metrics.delete_before("minute", now - keep_ms)
            if before // MAINTAIN_EVERY != self.generation // MAINTAIN_EVERY:
                for table in (self.events, self.live, self.metrics):
                    table.maintain()
        except CommitFailedError:
            return


def table_rows(warehouse: str | Path, table: str) -> TableRows:
    """Return the rows of events, live or metrics. Raise Refused for other tables or no warehouse."""
    if table not in STORED_TABLES:
        raise Refused(
            f"{table!r:.80} is no stored table; known tables: {', '.join(TABLES)}, of which "
            f"{', '.join(STORED_TABLES)} are stored",
            field="table",
        )
    return HistoryTable.open(warehouse_location(warehouse), table).rows()


def _batches(rows: TableRows, constants: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    schema = table_schema(rows.table.removesuffix("-read"))
    options = {"batch_size": 1 << 16, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
    for batch in rows.dataset().to_batches(**options):
        added = [pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows) for value in constants.values()]
        yield pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)


def _one_line(error: Exception) -> str:
    """Return an error of deltalake, a tree of causes with colours, in one line."""
    return " ".join(re.sub(r"\x1b\[\d*m|↳", "", str(error)).split())


def _properties(state: State) -> CommitProperties:
    # Without retries a commit is the next version of the opened table, or it fails.
    return CommitProperties(
        custom_metadata={STATE_KEY: msgspec.json.encode(state).decode()}, max_commit_retries=0
    )


def _find_state(delta: DeltaTable, uri: str) -> State:
    """Return the state in the newest commit that has one; other programs may have compacted the table."""
    for limit in (1, 100, None):
        for commit in delta.history(limit):
            if STATE_KEY in commit:
                return _decode_state(commit[STATE_KEY], uri)
            if commit.get("operation") == "CREATE TABLE":
                return State()
    raise StorageDamaged(
        f"no commit of {uri} has the state of an increment: the log of this table was trimmed"
    )


def _decode_state(text: str, where: str) -> State:
    try:
        found = msgspec.json.decode(text)["format"]
        if found > FORMAT:
            raise StorageTooNew(
                f"the warehouse has format {found}, but this dibs reads formats up to {FORMAT}; upgrade dibs"
            )
        return msgspec.json.decode(text, type=State)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise StorageDamaged(f"a commit of {where} has no valid state: {error}") from error


def iso_time(at: int) -> str:
    """Return a time in ms as text for a predicate of Delta."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: Schemes of URLs at which deltalake commits safely with several writers.
OBJECT_STORES: Final = ("s3", "s3a", "gs", "abfs", "abfss", "az")


def warehouse_location(location: str | Path) -> str:
    """Return the absolute path of a folder, or a URL without its last slash.

    Raise Refused for a URL of another scheme.
    """
    scheme, separator, rest = str(location).partition("://")
    if not separator:
        return str(Path(location).absolute())
    if scheme == "file":
        return "/" + rest.strip("/")
    if scheme not in OBJECT_STORES:
        raise Refused(
            f"no warehouse can be at {scheme}://; use a path, or a URL with one of these schemes: "
            f"{', '.join(OBJECT_STORES)}",
            field="warehouse",
        )
    if not rest.strip("/"):
        raise Refused(f"{location} names no bucket; write {scheme}://BUCKET/FOLDER", field="warehouse")
    return str(location).rstrip("/")


def _storage_options(location: str) -> dict[str, str]:
    """Return options beside those that deltalake reads from the environment."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if "://" in location and endpoint.startswith("http://"):
        return {"allow_http": "true"}
    return {}
