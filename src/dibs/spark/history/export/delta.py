"""The export to a table of Delta Lake. Each export that changes rows is one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa

from dibs.errors import ConfigurationError, StorageError
from dibs.model.error_text import summarize_exception
from dibs.spark.history.export.position import (
    POSITION_KEY,
    Export,
    ExportSource,
    Position,
    decode_position,
    encode_position,
    open_source,
)
from dibs.spark.history.warehouse.draft import WarehouseBusy

if find_spec("deltalake") is None:
    raise ConfigurationError("an export to Delta Lake needs deltalake: pip install 'dibs[delta]'")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

#: Name of the sequence of exports in the log of the table. Of two commits for one version of the table with
#: this name, Delta refuses the second, which would add the same rows.
APPLICATION: Final = "dibs"


def export_delta(
    warehouse: str | Path,
    location: str | Path,
    table: str = "events",
    *,
    storage_options: Mapping[str, str] | None = None,
) -> Export:
    """Bring a table of a warehouse to a table of Delta Lake, and return the number of rows that were written.

    New rows of `events` and `runs` are added. `metrics`, `ids` and `live` are replaced as a whole, if the
    warehouse has a newer generation. `location` is a path or a URL; the first export creates the table,
    partitioned by `date`. Each commit holds the generation and the offsets of its rows, so each row is there
    once, also if exports are killed or run at the same time. `storage_options` are those of deltalake, for
    example credentials.

    Raise Refused for a table with rows of another warehouse, WarehouseBusy if another writer has committed
    at the same time, and StorageError if the location cannot be opened. Then nothing is changed.
    """
    source = open_source(warehouse, table)
    delta = _open(source, str(location), storage_options)
    done = find_position(delta)
    source.check(done, has_rows=done is None and bool(delta.file_uris()))
    position = source.position
    if source.is_done(done):
        return Export(rows=0, generation=position.generation)
    counted = _Counted(source.batches(done))
    if source.is_appended and not counted.has_more():
        return Export(rows=0, generation=position.generation)
    properties = CommitProperties(
        custom_metadata={POSITION_KEY: encode_position(position)},
        app_transactions=[Transaction(APPLICATION, position.generation)],
    )
    try:
        write_deltalake(
            delta,
            pa.RecordBatchReader.from_batches(source.schema, counted),
            mode="append" if source.is_appended else "overwrite",
            commit_properties=properties,
        )
    except CommitFailedError as error:
        raise WarehouseBusy(
            f"another writer has changed {location} at the same time ({error}); repeat this export",
            field="location",
        ) from error
    return Export(rows=counted.rows, generation=position.generation)


class _Counted:
    """An iterator over batches that counts their rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0

    def has_more(self) -> bool:
        """Return whether another batch follows."""
        first = next(self._batches, None)
        if first is not None:
            self._batches = chain([first], self._batches)
        return first is not None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def _open(source: ExportSource, location: str, options: Mapping[str, str] | None) -> DeltaTable:
    settings = None if options is None else dict(options)
    try:
        if not DeltaTable.is_deltatable(location, settings):
            return DeltaTable.create(
                location, source.schema, mode="ignore", partition_by=["date"], storage_options=settings
            )
        found = DeltaTable(location, storage_options=settings)
    except (DeltaError, OSError) as error:
        reason = summarize_exception(error).partition("\n")[0]
        raise StorageError(f"cannot open the table of Delta Lake at {location}: {reason}") from error
    source.check_columns(_columns(found), location)
    return found


def _columns(delta: DeltaTable) -> list[str]:
    names: list[str] = delta.schema().to_arrow().names
    return names


def find_position(delta: DeltaTable) -> Position | None:
    """Return the position in the newest commit of an export; None for a table without one.

    Delta deletes old commits of its log, after 30 days by default. If the last export is older, the position
    follows from the rows of the table.
    """
    for limit in (1, 100, None):
        for commit in delta.history(limit):
            if POSITION_KEY in commit:
                return decode_position(commit[POSITION_KEY])
    generation = delta.transaction_version(APPLICATION)
    return None if generation is None else _position_of_rows(delta, generation)


def _position_of_rows(delta: DeltaTable, generation: int) -> Position:
    offsets: dict[str, str] = {}
    if "offset" not in _columns(delta):
        return Position(source="", generation=generation, offsets=offsets)
    for batch in delta.to_pyarrow_dataset().to_batches(columns=["queue", "offset"]):
        groups = pa.Table.from_batches([batch]).group_by("queue").aggregate([("offset", "max")])
        for row in groups.to_pylist():
            offsets[row["queue"]] = max(offsets.get(row["queue"], ""), row["offset_max"])
    return Position(source="", generation=generation, offsets=offsets)
