"""The size of 10,000 waiting jobs with generated ids and a small payload, on each storage, in MiB."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from redis import Redis

from benchmarks.scenarios import PAYLOAD
from dibs.client.options.arguments import new_id
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove_storage

JOBS: Final = 10_000
MIB: Final = 1 << 20
#: Seconds until Redis must have noticed that our connections are closed.
CLOSE_TIMEOUT: Final = 30.0


async def _fill(storage: Storage) -> None:
    """Enqueue jobs with generated ids, as a client that names no ids."""
    data = JobData(payload=PAYLOAD)
    for _ in range(0, JOBS, 1_000):
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=new_id(), data=data)) for _ in range(1_000)])


async def redis_mib(url: str) -> float:
    """Return the growth of used_memory in MiB, without scripts and the buffers of connections."""
    storage_url = url.replace("NAME", "footprint")
    async with open_storage(storage_url) as storage:
        # These calls load the scripts before the first reading of used_memory.
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="first", data=JobData(payload=PAYLOAD)))])
        await storage.forget("q", ["first"])
    with Redis.from_url(url.partition("?")[0]) as redis:
        before = _used_memory(redis)
        async with open_storage(storage_url) as storage:
            await _fill(storage)
        growth = _used_memory(redis) - before
    await remove_storage(storage_url)
    return growth / MIB


def _used_memory(redis: Redis) -> int:
    """Return used_memory in bytes once all other clients are disconnected, or raise TimeoutError."""
    deadline = time.monotonic() + CLOSE_TIMEOUT
    while (others := int(redis.info("clients")["connected_clients"]) - 1) > 0:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{others} other clients are still connected after {CLOSE_TIMEOUT:g} s, and their buffers "
                "would be counted: measure on a server without other clients"
            )
        time.sleep(0.01)
    return int(redis.info("memory")["used_memory"])


async def postgres_mib(url: str) -> float:
    """Return the growth of the tables of the schema in MiB, with their indexes."""
    storage_url = url.replace("NAME", "footprint")
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:

        def size() -> int:
            row = connection.execute(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = 'footprint' AND c.relkind = 'r'"
            ).fetchone()
            assert row
            return int(row[0])

        async with open_storage(storage_url) as storage:
            before = size()
            await _fill(storage)
            growth = size() - before
    await remove_storage(storage_url)
    return growth / MIB


async def file_mib() -> float:
    """Return the MiB of the disk blocks that the files occupy."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_storage(f"file:{folder}/jobs") as storage:
            await _fill(storage)
        return _disk_bytes(Path(folder)) / MIB


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


async def measure(redis: str, postgres: str) -> dict[str, Any]:
    """Return the MiB by kind of storage."""
    return {
        "redis": round(await redis_mib(redis), 2),
        "postgresql": round(await postgres_mib(postgres), 2),
        "file": round(await file_mib(), 2),
    }
