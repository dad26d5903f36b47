"""The engine on Spark, for histories that are larger than one machine should compute."""
