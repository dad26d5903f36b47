"""The storages that keep jobs: memory, file, Redis and Postgres, the protocol they share, and their registry.

The storages do not import each other. `memory` and `file` share the package `indexed`.
"""
