"""The baselines of servers: the fewest commands that a queue needs, with the same driver as the storage."""

from __future__ import annotations

import time
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
