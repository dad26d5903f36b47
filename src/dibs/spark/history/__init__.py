"""The history of all runs: increments that read the logs of a storage, and a warehouse of Parquet
tables.
"""
