"""The class that Spark creates for `format("dibs")`, with one method per kind of reader and writer.

If dibs is installed, Spark finds the class through the module pyspark_dibs. Otherwise call
`spark.dataSource.register(DibsSource)`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.spark.connection import shared_url
from dibs.spark.executors import freeze_imports
from dibs.spark.schemas import struct_type
from dibs.spark.source.batch_reader import PushdownReader, TableReader
from dibs.spark.source.options import read_options, stream_options, write_options
from dibs.spark.source.stream_reader import EventStreamReader
from dibs.spark.source.writers import BatchWriter, StreamWriter

#: Spark adds this option to those of CREATE TABLE: the name of the data source.
_CREATE_TABLE_OPTION: Final = "provider"
#: Seen with Spark 4.3: it stores the OPTIONS of a table, but passes none of them to a source in Python, for
#: SELECT and for INSERT.
_TABLE_ADVICE: Final = (
    "Spark does not pass the OPTIONS of a table in its catalog to a data source written in Python. Use "
    "CREATE TEMPORARY VIEW name USING dibs OPTIONS (url '...', table 'jobs'), or spark.read.format(\"dibs\")"
)


class DibsSource(ds.DataSource):
    """The data source `dibs`: the jobs, outcomes, events and runs of a storage, and writes to its queues."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "dibs"

    def schema(self) -> StructType:
        """Return the columns of the requested table.

        Raise Refused for a storage that Spark cannot read, and for CREATE TABLE.
        """
        if _CREATE_TABLE_OPTION in self.options:
            raise Refused(f"CREATE TABLE ... USING dibs is not possible: {_TABLE_ADVICE}", field="table")
        shared_url(self.options.get("url"))
        # The default table of a stream is `events`. Spark calls this method for batch reads and streams
        # alike.
        schema = struct_type(self.options.get("table", "events"))
        freeze_imports()
        return schema

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return the reader of a batch read."""
        self._check_has_options()
        options = read_options(self.options)
        return (PushdownReader if options.pushdown else TableReader)(options, schema)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        return EventStreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of a batch write."""
        if overwrite:
            raise Refused("mode overwrite would replace the queue; use mode append", field="mode")
        self._check_has_options()
        return BatchWriter(write_options(self.options), schema)

    def _check_has_options(self) -> None:
        """Raise Refused for a table of the catalog that was created without a call of `schema`."""
        if not self.options:
            raise Refused(f"the data source dibs got no options. {_TABLE_ADVICE}", field="table")

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return the writer of a stream."""
        if overwrite:
            raise Refused("output mode complete would replace the queue; use append", field="mode")
        return StreamWriter(write_options(self.options, stream=True), schema)
