"""The engine on DuckDB, in this process and without Java."""
