"""The report of a warehouse: its figures, computed without Spark, and the HTML page with charts of them."""
