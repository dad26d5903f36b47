"""The data source `dibs`: what Spark makes of `spark.read.format("dibs")` and its three brothers.

Spark finds it by itself where dibs is installed (the module pyspark_dibs); elsewhere,
`spark.dataSource.register(DibsSource)`.
"""

from __future__ import annotations

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.spark.options import read_options
from dibs.spark.reading import FilteringReader, Reader
from dibs.spark.schemas import struct_type


class DibsSource(ds.DataSource):
    """Jobs, outcomes, events and runs of one place as tables, and queues to write into."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "dibs"

    def schema(self) -> StructType:
        """Return the columns of the table that is asked for."""
        return struct_type(self.options.get("table", ""))

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return who reads a table once."""
        options = read_options(self.options)
        return (FilteringReader if options.pushdown else Reader)(options, schema)
