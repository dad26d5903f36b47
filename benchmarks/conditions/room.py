"""What 10,000 waiting jobs with generated ids and a small payload take, on each storage."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from redis import Redis

from benchmarks.scenarios import PAYLOAD
from dibs.client.options.ids import new_id
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove_storage

JOBS: Final = 10_000
MIB: Final = 1 << 20
#: Seconds that a server may take to see that our own connections are closed.
PATIENCE: Final = 30.0


async def _fill(storage: Storage) -> None:
    """Enqueue as a client does that names no ids."""
    data = JobData(payload=PAYLOAD)
    for _ in range(0, JOBS, 1_000):
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=new_id(), data=data)) for _ in range(1_000)])


async def on_redis(url: str) -> float:
    """Return MiB: what used_memory grew by, without the scripts and what connections hold."""
    there = url.replace("PLACE", "room")
    async with open_storage(there) as storage:
        # From here on the server knows the scripts.
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="first", data=JobData(payload=PAYLOAD)))])
        await storage.forget("q", ["first"])
    with Redis.from_url(url.partition("?")[0]) as redis:
        before = _used(redis)
        async with open_storage(there) as storage:
            await _fill(storage)
        grown = _used(redis) - before
    await remove_storage(there)
    return grown / MIB


def _used(redis: Redis) -> int:
    """Return the bytes used, once nobody else is connected. Raises TimeoutError if somebody stays."""
    deadline = time.monotonic() + PATIENCE
    while (others := int(redis.info("clients")["connected_clients"]) - 1) > 0:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{others} other clients are connected after {PATIENCE:g} s, and what they hold would count: "
                "measure room on a server that nobody else uses"
            )
        time.sleep(0.01)
    return int(redis.info("memory")["used_memory"])


async def on_postgres(url: str) -> float:
    """Return MiB: what the tables of the schema grew by, their indexes included."""
    there = url.replace("PLACE", "room")
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:

        def size() -> int:
            row = connection.execute(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'room' AND c.relkind = 'r'"
            ).fetchone()
            assert row
            return int(row[0])

        async with open_storage(there) as storage:
            before = size()
            await _fill(storage)
            grown = size() - before
    await remove_storage(there)
    return grown / MIB


async def on_files() -> float:
    """Return MiB: the blocks that the files take."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_storage(f"file:{folder}/jobs") as storage:
            await _fill(storage)
        return _blocks(Path(folder)) / MIB


def _blocks(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


async def measure(redis: str, postgres: str) -> dict[str, Any]:
    """Return the MiB by kind of storage."""
    return {
        "redis": round(await on_redis(redis), 2),
        "postgresql": round(await on_postgres(postgres), 2),
        "file": round(await on_files(), 2),
    }
