"""Typed columns for `read`: payloads and results by a schema or a task, and attributes as plain texts."""
