"""Empty storages and private servers for measurements. NAME in a URL stands for a new, empty storage."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove_storage
from dibs_conformance.servers import start_postgres, start_redis


@asynccontextmanager
async def empty_storage(url: str) -> AsyncIterator[Storage]:
    """Open an empty storage, with NAME in the URL replaced, and delete it at the end of the block.

    A file storage is created in the current directory, so that its disk is measured.
    """
    folder = tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd())
    name = folder if url.startswith("file") else f"bench_{uuid4().hex}"
    storage_url = url.replace("NAME", name)
    try:
        async with open_storage(storage_url) as storage:
            yield storage
        if name in storage_url:
            await remove_storage(storage_url)
    finally:
        # remove_storage has deleted the folder of a file storage; other storages leave it empty.
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def private_servers() -> Iterator[tuple[list[str], str]]:
    """Start a Redis and a Postgres. Yield their URLs, and a description for the reports.

    Redis runs without persistence. Postgres has its default durability: a commit waits for the disk.
    Raises ServerUnavailable.
    """
    with start_redis() as redis, start_postgres(fsync="on", shared_buffers="128MB") as postgres:
        urls = [f"{redis.url}?prefix=NAME", f"{postgres.url}?schema=NAME"]
        yield urls, f"Redis {redis.version} without persistence; Postgres {postgres.version} with fsync"
