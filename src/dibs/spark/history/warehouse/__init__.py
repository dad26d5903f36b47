"""The warehouse: immutable Parquet files, and one manifest per generation, in a folder or an object store."""
