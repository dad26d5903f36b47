"""Exports of a warehouse to table formats: Delta Lake and Iceberg."""
