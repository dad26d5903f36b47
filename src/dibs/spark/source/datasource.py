"""The data source `dibs`: what Spark makes of `spark.read.format("dibs")` and its three brothers.

Spark finds it by itself where dibs is installed (the module pyspark_dibs); elsewhere,
`spark.dataSource.register(DibsSource)`.
"""

from __future__ import annotations

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.spark.door import place_of
from dibs.spark.schemas import struct_type
from dibs.spark.source.following import Follower
from dibs.spark.source.options import follow_options, read_options, write_options
from dibs.spark.source.reading import FilteringReader, Reader
from dibs.spark.source.writing import StreamWriter, Writer


class DibsSource(ds.DataSource):
    """Jobs, outcomes, events and runs of one place as tables, and queues to write into."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "dibs"

    def schema(self) -> StructType:
        """Return the columns of the table that is asked for. A place that cannot be read is refused here."""
        place_of(self.options.get("url"))
        # A stream is one of events unless it says otherwise, and is asked here in the same words.
        return struct_type(self.options.get("table", "events"))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return who reads a table once."""
        options = read_options(self.options)
        return (FilteringReader if options.pushdown else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802
        """Return who follows the logs."""
        return Follower(follow_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - Spark's own
        """Return who writes once."""
        if overwrite:
            raise Refused("a queue is added to, never replaced: write with mode append", field="mode")
        return Writer(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return who writes a stream."""
        if overwrite:
            raise Refused("a queue is added to, never replaced: use output mode append", field="mode")
        return StreamWriter(write_options(self.options, stream=True), schema)
