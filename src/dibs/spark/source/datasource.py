"""The data source `dibs`: what Spark makes of `spark.read.format("dibs")` and its three brothers.

Spark finds it by itself where dibs is installed (the module pyspark_dibs); elsewhere,
`spark.dataSource.register(DibsSource)`.
"""

from __future__ import annotations

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.spark.connection import shared_url
from dibs.spark.schemas import struct_type
from dibs.spark.source.batch_reader import PushdownReader, TableReader
from dibs.spark.source.options import read_options, stream_options, write_options
from dibs.spark.source.stream_reader import EventStreamReader
from dibs.spark.source.writers import BatchWriter, StreamWriter


class DibsSource(ds.DataSource):
    """Jobs, outcomes, events and runs of one place as tables, and queues to write into."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "dibs"

    def schema(self) -> StructType:
        """Return the columns of the table that is asked for. A place that cannot be read is refused here."""
        shared_url(self.options.get("url"))
        # A stream is one of events unless it says otherwise, and is asked here in the same words.
        return struct_type(self.options.get("table", "events"))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return who reads a table once."""
        options = read_options(self.options)
        return (PushdownReader if options.pushdown else TableReader)(options, schema)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802
        """Return who follows the logs."""
        return EventStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - Spark's own
        """Return who writes once."""
        if overwrite:
            raise Refused("a queue is added to, never replaced: write with mode append", field="mode")
        return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return who writes a stream."""
        if overwrite:
            raise Refused("a queue is added to, never replaced: use output mode append", field="mode")
        return StreamWriter(write_options(self.options, stream=True), schema)
