"""The Spark data source `dibs`, functions to read and write DataFrames, and workers on a Spark cluster.

Importing this package does not import pyspark. A function that needs pyspark raises ConfigurationError with
the install command if pyspark is missing.
"""

from dibs.spark.cluster_workers import ExecutorReport, run_workers
from dibs.spark.dataframes import enqueue, read, read_stream, replay
from dibs.spark.java import session
from dibs.spark.write_report import WriteReport

__all__ = [
    "ExecutorReport",
    "WriteReport",
    "enqueue",
    "read",
    "read_stream",
    "replay",
    "run_workers",
    "session",
]
