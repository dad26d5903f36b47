"""Jobs as tables: the data source `dibs` for Apache Spark, its history, and workers on a Spark cluster.

Nothing here imports pyspark before it is used; without it the error names the extra.
"""

from dibs.spark.enqueueing import enqueue, read
from dibs.spark.fleet import ExecutorReport, run_workers
from dibs.spark.java import session
from dibs.spark.sent import WriteReport

__all__ = ["ExecutorReport", "WriteReport", "enqueue", "read", "run_workers", "session"]
