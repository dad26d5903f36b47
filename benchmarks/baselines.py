"""The baselines: the least that a queue must do on each storage, without guarantees."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Final
from uuid import uuid4

from psycopg import AsyncConnection, sql
from redis.asyncio import Redis, from_url

from benchmarks.scenarios import PAYLOAD

#: KEYS: the job, the sorted set of waiting jobs. ARGV: id, payload, score.
PUT: Final = """
redis.call('HSET', KEYS[1], 'payload', ARGV[2], 'attempts', 0)
return redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
"""
#: KEYS: the sorted sets of waiting and of running jobs. ARGV: prefix of the jobs' keys, score.
TAKE: Final = """
local id = redis.call('ZPOPMIN', KEYS[1])[1]
local job = redis.call('HGETALL', ARGV[1] .. id)
redis.call('ZADD', KEYS[2], ARGV[2], id)
return {id, job}
"""
#: KEYS: the sorted set of running jobs, the job. ARGV: id.
FINISH: Final = """
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('DEL', KEYS[2])
"""


async def redis_put(url: str, jobs: int, batch: int) -> float:
    """Call EVALSHA for each job, `batch` in a pipeline. The script calls HSET and ZADD."""
    async with from_url(_without_query(url)) as client:
        prefix = f"baseline-{uuid4().hex}"
        try:
            return await _redis_put(client, prefix, jobs, batch)
        finally:
            await _delete_keys(client, prefix)


async def redis_take(url: str, jobs: int, batch: int) -> float:
    """Call EVALSHA for each job, `batch` in a pipeline. The script calls ZPOPMIN, HGETALL and ZADD."""
    async with from_url(_without_query(url)) as client:
        prefix = f"baseline-{uuid4().hex}"
        try:
            await _redis_put(client, prefix, jobs, 100)
            return await _redis_take(client, prefix, jobs, batch)
        finally:
            await _delete_keys(client, prefix)


async def redis_take_and_finish(url: str, jobs: int, batch: int) -> float:
    """Take jobs as `redis_take`, then finish them with a second EVALSHA for each, `batch` in a pipeline."""
    async with from_url(_without_query(url)) as client:
        prefix = f"baseline-{uuid4().hex}"
        try:
            await _redis_put(client, prefix, jobs, 100)
            finish = await client.script_load(FINISH)
            take = await client.script_load(TAKE)
            started = time.perf_counter()
            for _ in range(0, jobs, batch):
                ids = await _take_batch(client, take, prefix, batch)
                pipe = client.pipeline(transaction=False)
                for id in ids:
                    pipe.evalsha(finish, 2, f"{prefix}:running", f"{prefix}:{id}", id)
                await pipe.execute()
            return jobs / (time.perf_counter() - started)
        finally:
            await _delete_keys(client, prefix)


async def _take_batch(client: Redis, take: str, prefix: str, batch: int) -> list[str]:
    pipe = client.pipeline(transaction=False)
    for _ in range(batch):
        pipe.evalsha(take, 2, f"{prefix}:waiting", f"{prefix}:running", f"{prefix}:", "1")
    return [id.decode() for id, _ in await pipe.execute()]


async def _redis_put(client: Redis, prefix: str, jobs: int, batch: int) -> float:
    put = await client.script_load(PUT)
    started = time.perf_counter()
    for start in range(0, jobs, batch):
        pipe = client.pipeline(transaction=False)
        for n in range(start, start + batch):
            id = f"job-{n:09d}"
            pipe.evalsha(put, 2, f"{prefix}:{id}", f"{prefix}:waiting", id, PAYLOAD, str(n))
        await pipe.execute()
    return jobs / (time.perf_counter() - started)


async def _redis_take(client: Redis, prefix: str, jobs: int, batch: int) -> float:
    take = await client.script_load(TAKE)
    started = time.perf_counter()
    for _ in range(0, jobs, batch):
        await _take_batch(client, take, prefix, batch)
    return jobs / (time.perf_counter() - started)


async def _delete_keys(client: Redis, prefix: str) -> None:
    keys = [key async for key in client.scan_iter(f"{prefix}:*", count=1000)]
    for start in range(0, len(keys), 1000):
        await client.unlink(*keys[start : start + 1000])


async def postgres_put(url: str, jobs: int, batch: int) -> float:
    """Execute `INSERT ... SELECT` with `batch` rows a statement, and commit each statement."""
    async with await AsyncConnection.connect(_without_query(url), autocommit=True) as connection:
        table = await _create_table(connection)
        try:
            return await _postgres_put(connection, table, jobs, batch)
        finally:
            await connection.execute(sql.SQL("DROP TABLE {}").format(table))


async def postgres_take(url: str, jobs: int, batch: int) -> float:
    """Execute `DELETE ... SKIP LOCKED LIMIT batch RETURNING` the rows, and commit each statement."""
    async with await AsyncConnection.connect(_without_query(url), autocommit=True) as connection:
        table = await _create_table(connection)
        try:
            await _postgres_put(connection, table, jobs, 100)
            return await _postgres_take(connection, table, jobs, batch)
        finally:
            await connection.execute(sql.SQL("DROP TABLE {}").format(table))


async def _create_table(connection: AsyncConnection) -> sql.Identifier:
    table = sql.Identifier(f"baseline_{uuid4().hex}")
    columns = "(n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, payload bytea NOT NULL)"
    await connection.execute(sql.SQL("CREATE TABLE {} ").format(table) + sql.SQL(columns))
    return table


async def _postgres_put(connection: AsyncConnection, table: sql.Identifier, jobs: int, batch: int) -> float:
    rows = "(id, payload) SELECT 'job-' || %s + n, %s FROM generate_series(1, %s) n"
    put = sql.SQL("INSERT INTO {} ").format(table) + sql.SQL(rows)
    started = time.perf_counter()
    for start in range(0, jobs, batch):
        await connection.execute(put, (start, PAYLOAD, batch))
    return jobs / (time.perf_counter() - started)


async def _postgres_take(connection: AsyncConnection, table: sql.Identifier, jobs: int, batch: int) -> float:
    take = sql.SQL(
        "DELETE FROM {0} WHERE n = ANY(ARRAY("
        "SELECT n FROM {0} ORDER BY n FOR UPDATE SKIP LOCKED LIMIT %s)) RETURNING id, payload"
    ).format(table)
    started = time.perf_counter()
    for _ in range(0, jobs, batch):
        rows = await (await connection.execute(take, (batch,))).fetchall()
        if len(rows) != batch:
            raise ValueError(f"expected {batch} rows, got {len(rows)}")
    return jobs / (time.perf_counter() - started)


def _without_query(url: str) -> str:
    """Return the URL of the server, without the query with options of the storage."""
    return url.partition("?")[0]


Baseline = Callable[[str, int, int], Awaitable[float]]


async def memory_put(url: str, jobs: int, batch: int) -> float:
    """Insert into a dict and push on a heap."""
    del url, batch
    payloads: dict[str, bytes] = {}
    heap: list[tuple[int, int, str]] = []
    started = time.perf_counter()
    for n in range(jobs):
        id = f"job-{n:09d}"
        payloads[id] = PAYLOAD
        heappush(heap, (0, n, id))
    return jobs / (time.perf_counter() - started)


async def memory_take(url: str, jobs: int, batch: int) -> float:
    """Pop from a heap and delete from a dict."""
    del url, batch
    payloads = {f"job-{n:09d}": PAYLOAD for n in range(jobs)}
    heap = [(0, n, id) for n, id in enumerate(payloads)]
    started = time.perf_counter()
    while heap:
        del payloads[heappop(heap)[2]]
    return jobs / (time.perf_counter() - started)


def _files(jobs: int, batch: int, *, fsync: bool) -> float:
    """Write one file for each batch, with 60 bytes a job, and rename it."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        body = b"x" * 60 * batch
        started = time.perf_counter()
        for n in range(0, jobs, batch):
            _write_and_rename(folder, n, body, fsync=fsync)
        return jobs / (time.perf_counter() - started)


def _write_and_rename(folder: str, n: int, body: bytes, *, fsync: bool) -> None:
    descriptor = os.open(f"{folder}/new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, body)
    if fsync:
        os.fsync(descriptor)
    os.close(descriptor)
    os.rename(f"{folder}/new", f"{folder}/{n}")  # noqa: PTH104 - measures this call without pathlib
    if fsync:
        parent = os.open(folder, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)


async def file_write(url: str, jobs: int, batch: int) -> float:
    """Write one file a batch without fsync."""
    del url
    return _files(jobs, batch, fsync=False)


async def file_write_fsync(url: str, jobs: int, batch: int) -> float:
    """Write one file a batch, with fsync of file and folder."""
    del url
    return _files(jobs, batch, fsync=True)


#: Kind of storage -> the baselines of `put` and `take`, and their description.
BASELINES: Final[dict[str, tuple[Baseline, Baseline, str]]] = {
    "memory": (memory_put, memory_take, "dict insert + heap push; heap pop + dict delete"),
    "file": (file_write, file_write, "write + rename of one file"),
    "file, fsync": (file_write_fsync, file_write_fsync, "write + fsync + rename + fsync of the folder"),
    "redis": (
        redis_put,
        redis_take,
        "a pipeline of EVALSHA, one a job: HSET + ZADD; ZPOPMIN + HGETALL + ZADD",
    ),
    "postgresql": (postgres_put, postgres_take, "INSERT ... SELECT; DELETE ... SKIP LOCKED ... RETURNING"),
}


async def measure(kind: str, url: str, name: str, jobs: int) -> float | None:
    """Return the rate of a baseline such as "put, 100", or None if the kind of storage has no baseline."""
    if kind not in BASELINES:
        return None
    put, take, _ = BASELINES[kind]
    step, _, batch = name.partition(", ")
    return await (put if step == "put" else take)(url, jobs, int(batch))
