"""The entry point of the data source `dibs`: Spark imports every top-level module named pyspark_*."""

from dibs.spark.source.datasource import DibsSource as DefaultSource

__all__ = ["DefaultSource"]
