"""The history of all runs: increments that read the logs of a storage and add to a warehouse of Parquet
tables.
"""
