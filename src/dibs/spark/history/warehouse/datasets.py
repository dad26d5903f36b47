"""Files of a table as a dataset of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as pads

from dibs.spark.history.tables import table_schema
from dibs.spark.history.warehouse.store import Store


def dataset_of(store: Store, table: str, files: list[str]) -> pads.Dataset:
    """Return some files of a table as a dataset of Arrow."""
    schema = table_schema(table)
    folders = pa.schema([schema.field("queue"), schema.field("date")])
    paths, filesystem = store.dataset_paths(files)
    return pads.dataset(
        paths,
        schema=schema,
        format="parquet",
        partitioning=pads.partitioning(folders, flavor="hive"),
        filesystem=filesystem,
    )
