"""Where Spark looks for the data source `dibs`: it imports every top-level module named pyspark_*."""

from dibs.spark.source.datasource import DibsSource as DefaultSource

__all__ = ["DefaultSource"]
