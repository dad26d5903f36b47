"""The export to a table of Iceberg. Each export that changes rows is one commit of the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyarrow as pa

from dibs.errors import ConfigurationError, Refused
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

if find_spec("pyiceberg") is None:
    raise ConfigurationError("an export to Iceberg needs pyiceberg: pip install 'dibs[iceberg]'")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import Table, Transaction

#: Rows of one snapshot, in memory at once. All snapshots of an export are committed together.
SNAPSHOT_ROWS: Final = 1 << 20
#: pyiceberg repeats a commit behind the one of another writer, and would add the same rows twice.
_RETRIES: Final = "commit.retry.num-retries"


def export_iceberg(
    warehouse: str | Path, identifier: str, table: str = "events", *, catalog: Catalog | str = "default"
) -> Export:
    """Bring a table of a warehouse to a table of Iceberg, and return the number of rows that were written.

    New rows of `events` and `runs` are added. `metrics`, `ids` and `live` are replaced as a whole, if the
    warehouse has a newer generation. `identifier` is the name of the table with its namespace, as
    `jobs.events`. `catalog` is a catalogue of pyiceberg, or its name in the configuration of pyiceberg. The
    first export creates the table and its namespace, partitioned by `date`. Each commit also sets the
    property `dibs-position`, so each row is there once, also if exports are killed or run at the same time.

    Raise Refused for a table with rows of another warehouse, and WarehouseBusy if another writer has
    committed at the same time. Then nothing is changed.
    """
    source = open_source(warehouse, table)
    iceberg = _open(source, _open_catalog(catalog), identifier)
    text = iceberg.properties.get(POSITION_KEY)
    done = None if text is None else decode_position(text)
    source.check(done, has_rows=_row_total(iceberg) > 0)
    position = source.position
    if source.is_done(done):
        return Export(rows=0, generation=position.generation)
    # In this process only: the property in the catalogue stays as it is.
    iceberg.metadata.properties[_RETRIES] = "0"
    try:
        with iceberg.transaction() as transaction:
            rows = _write(transaction, source, done, iceberg)
    except CommitFailedException as error:
        raise WarehouseBusy(
            f"another writer has changed {identifier} at the same time ({error}); repeat this export",
            field="identifier",
        ) from error
    return Export(rows=rows, generation=position.generation)


def _write(transaction: Transaction, source: ExportSource, done: Position | None, iceberg: Table) -> int:
    """Write the rows and the position in a transaction, and return the number of rows."""
    rows, is_changed = 0, False
    if not source.is_appended and _row_total(iceberg):
        transaction.delete(AlwaysTrue())
        is_changed = True
    for chunk in _chunks(source, done):
        transaction.append(chunk)
        rows += chunk.num_rows
        is_changed = True
    # Only with a change of rows, because a commit of properties alone never conflicts: a slow export would
    # take the position back.
    if is_changed:
        transaction.set_properties({POSITION_KEY: encode_position(source.position)})
    return rows


def _row_total(iceberg: Table) -> int:
    snapshot = iceberg.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0 if snapshot is None else 1
    # A writer may leave the total out. Then the table counts as not empty.
    return int(snapshot.summary["total-records"] or 1)


def _chunks(source: ExportSource, done: Position | None) -> Iterator[pa.Table]:
    """Yield the rows to write as tables of about SNAPSHOT_ROWS rows."""
    batches: list[pa.RecordBatch] = []
    held = 0
    for batch in source.batches(done):
        batches.append(batch)
        held += batch.num_rows
        if held >= SNAPSHOT_ROWS:
            yield pa.Table.from_batches(batches)
            batches, held = [], 0
    if batches:
        yield pa.Table.from_batches(batches)


def _open_catalog(catalog: Catalog | str) -> Catalog:
    if not isinstance(catalog, str):
        return catalog
    try:
        return load_catalog(catalog)
    except ValueError as error:
        raise Refused(
            f"the catalogue {catalog!r:.80} is not configured ({error}); set it in ~/.pyiceberg.yaml or by "
            f"PYICEBERG_CATALOG__{catalog.upper()}__URI",
            field="catalog",
        ) from error


def _open(source: ExportSource, catalog: Catalog, identifier: str) -> Table:
    if "." not in identifier:
        raise Refused(f"{identifier!r:.80} has no namespace; write it as jobs.events", field="identifier")
    try:
        found = catalog.load_table(identifier)
    except NoSuchTableError:
        return _create(source, catalog, identifier)
    source.check_columns(found.schema().column_names, identifier)
    return found


def _create(source: ExportSource, catalog: Catalog, identifier: str) -> Table:
    catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
    try:
        with (
            catalog.create_table_transaction(identifier, schema=source.schema) as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_identity("date")
    except (TableAlreadyExistsError, CommitFailedException):
        pass  # another export has created it
    return catalog.load_table(identifier)
