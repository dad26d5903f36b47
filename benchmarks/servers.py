"""A Redis and a Postgres for as long as the benchmarks run, on a port and in a folder of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dibs_conformance.servers import start_postgres, start_redis


@contextmanager
def private_servers() -> Iterator[tuple[list[str], str]]:
    """Yield the URLs of both, and what is measured there in words. Raises Missing.

    Redis keeps nothing on disk. Postgres is as durable as it is by default: a commit is on the disk.
    """
    with start_redis() as redis, start_postgres(fsync="on", shared_buffers="128MB") as postgres:
        urls = [f"{redis.url}?prefix=PLACE", f"{postgres.url}?schema=PLACE"]
        yield urls, f"Redis {redis.version}, nothing on disk; Postgres {postgres.version}, fsync on"
