"""A data source of constant rows with the columns of `jobs`: the limit of every data source in Python.

It has no storage and makes each batch once, so only Spark's own work is left: the processes that plan a read,
the transfer of Arrow batches to Java, and the rows that Java makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.spark.schemas import arrow_schema, select_columns, struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows of a batch; about as many as a batch of the source has.
BATCH = 13_000


class ConstantsReader(ds.DataSourceReader):
    """Yields the same batch until the wanted number of rows is reached."""

    def __init__(self, rows: int, schema: StructType) -> None:
        self._rows = rows
        self._names = schema.names

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(0)]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        whole = arrow_schema("jobs")
        fields = [whole.field(name) for name in self._names]
        batch = pa.RecordBatch.from_arrays([constants(field) for field in fields], schema=pa.schema(fields))
        for first in range(0, self._rows, BATCH):
            yield batch.slice(0, min(BATCH, self._rows - first))


class ConstantsSource(ds.DataSource):
    """The data source `constants`, with the options rows and columns (all or 2)."""

    @classmethod
    def name(cls) -> str:
        return "constants"

    def schema(self) -> StructType:
        if self.options["columns"] == "all":
            return struct_type("jobs")
        return select_columns("jobs", ("id", "payload"))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        return ConstantsReader(int(self.options["rows"]), schema)


def constants(field: pa.Field) -> pa.Array:
    """Return a column of a waiting job: a payload of 100 bytes, and null where such a job has no value."""
    values: dict[str, Any] = {"id": "0" * 32, "payload": b"x" * 100, "payload_json": "x" * 100}
    value: Any = None if field.nullable else "waiting" if pa.types.is_string(field.type) else 1
    if pa.types.is_map(field.type):
        value = []
    return pa.array([values.get(field.name, value)] * BATCH, field.type)


def frame(spark: SparkSession, rows: int, columns: str) -> DataFrame:
    """Return a DataFrame of constant rows."""
    return spark.read.format("constants").options(rows=str(rows), columns=columns).load()
