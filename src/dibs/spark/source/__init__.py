"""The Spark data source `dibs`: its options, readers and writers."""
