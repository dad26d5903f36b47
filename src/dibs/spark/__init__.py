"""Jobs as tables: the data source `dibs` for Apache Spark, its history, and workers on a Spark cluster."""
