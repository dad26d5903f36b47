"""Connections to a Postgres server: URL, pool, statements, errors."""
