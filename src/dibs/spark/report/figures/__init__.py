"""The figures of a report, which DuckDB computes from the tables of a warehouse."""
