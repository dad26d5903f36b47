"""The figures of a report, computed from the Parquet files of a warehouse with pyarrow."""
