"""What Spark reads and writes: the data source `dibs`, from its options to its rows."""
