"""The bare steps on a server: the least a queue could ask of it, with the driver that the storage uses."""

from __future__ import annotations

import time
from typing import Final
from uuid import uuid4

from psycopg import AsyncConnection, sql
from redis.asyncio import Redis, from_url

from benchmarks.scenarios import PAYLOAD

#: KEYS: the job, the line. ARGV: id, payload, place in the line.
PUT: Final = """
redis.call('HSET', KEYS[1], 'payload', ARGV[2], 'attempts', 0)
return redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
"""
#: KEYS: the line, what is being run. ARGV: beginning of the jobs' keys, place among those that run.
TAKE: Final = """
local id = redis.call('ZPOPMIN', KEYS[1])[1]
local job = redis.call('HGETALL', ARGV[1] .. id)
redis.call('ZADD', KEYS[2], ARGV[2], id)
return {id, job}
"""
#: KEYS: what is being run, the job. ARGV: id.
FINISH: Final = """
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('DEL', KEYS[2])
"""


async def redis_put(url: str, jobs: int, batch: int) -> float:
    """One EVALSHA a job, so many in a pipeline, of a script doing HSET and ZADD."""
    async with from_url(_plain(url)) as client:
        space = f"bare-{uuid4().hex}"
        try:
            return await _redis_put(client, space, jobs, batch)
        finally:
            await _sweep(client, space)


async def redis_take(url: str, jobs: int, batch: int) -> float:
    """One EVALSHA a job, so many in a pipeline, of a script doing ZPOPMIN, HGETALL and ZADD."""
    async with from_url(_plain(url)) as client:
        space = f"bare-{uuid4().hex}"
        try:
            await _redis_put(client, space, jobs, 100)
            return await _redis_take(client, space, jobs, batch)
        finally:
            await _sweep(client, space)


async def redis_take_and_finish(url: str, jobs: int, batch: int) -> float:
    """Take as above, then finish what was taken: one EVALSHA a job each, so many in a pipeline."""
    async with from_url(_plain(url)) as client:
        space = f"bare-{uuid4().hex}"
        try:
            await _redis_put(client, space, jobs, 100)
            finish = await client.script_load(FINISH)
            take = await client.script_load(TAKE)
            begun = time.perf_counter()
            for _ in range(0, jobs, batch):
                ids = await _taken(client, take, space, batch)
                pipe = client.pipeline(transaction=False)
                for id in ids:
                    pipe.evalsha(finish, 2, f"{space}:running", f"{space}:{id}", id)
                await pipe.execute()
            return jobs / (time.perf_counter() - begun)
        finally:
            await _sweep(client, space)


async def _taken(client: Redis, take: str, space: str, batch: int) -> list[str]:
    pipe = client.pipeline(transaction=False)
    for _ in range(batch):
        pipe.evalsha(take, 2, f"{space}:line", f"{space}:running", f"{space}:", "1")
    return [id.decode() for id, _ in await pipe.execute()]


async def _redis_put(client: Redis, space: str, jobs: int, batch: int) -> float:
    put = await client.script_load(PUT)
    begun = time.perf_counter()
    for start in range(0, jobs, batch):
        pipe = client.pipeline(transaction=False)
        for n in range(start, start + batch):
            id = f"job-{n:09d}"
            pipe.evalsha(put, 2, f"{space}:{id}", f"{space}:line", id, PAYLOAD, str(n))
        await pipe.execute()
    return jobs / (time.perf_counter() - begun)


async def _redis_take(client: Redis, space: str, jobs: int, batch: int) -> float:
    take = await client.script_load(TAKE)
    begun = time.perf_counter()
    for _ in range(0, jobs, batch):
        await _taken(client, take, space, batch)
    return jobs / (time.perf_counter() - begun)


async def _sweep(client: Redis, space: str) -> None:
    keys = [key async for key in client.scan_iter(f"{space}:*", count=1000)]
    for start in range(0, len(keys), 1000):
        await client.unlink(*keys[start : start + 1000])


async def postgres_put(url: str, jobs: int, batch: int) -> float:
    """`INSERT ... SELECT` of so many rows a statement, each statement a commit."""
    async with await AsyncConnection.connect(_plain(url), autocommit=True) as connection:
        table = await _table(connection)
        try:
            return await _postgres_put(connection, table, jobs, batch)
        finally:
            await connection.execute(sql.SQL("DROP TABLE {}").format(table))


async def postgres_take(url: str, jobs: int, batch: int) -> float:
    """`DELETE ... SKIP LOCKED LIMIT` so many, RETURNING the rows, each statement a commit."""
    async with await AsyncConnection.connect(_plain(url), autocommit=True) as connection:
        table = await _table(connection)
        try:
            await _postgres_put(connection, table, jobs, 100)
            return await _postgres_take(connection, table, jobs, batch)
        finally:
            await connection.execute(sql.SQL("DROP TABLE {}").format(table))


async def _table(connection: AsyncConnection) -> sql.Identifier:
    table = sql.Identifier(f"bare_{uuid4().hex}")
    columns = "(n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, payload bytea NOT NULL)"
    await connection.execute(sql.SQL("CREATE TABLE {} ").format(table) + sql.SQL(columns))
    return table


async def _postgres_put(connection: AsyncConnection, table: sql.Identifier, jobs: int, batch: int) -> float:
    rows = "(id, payload) SELECT 'job-' || %s + n, %s FROM generate_series(1, %s) n"
    put = sql.SQL("INSERT INTO {} ").format(table) + sql.SQL(rows)
    begun = time.perf_counter()
    for start in range(0, jobs, batch):
        await connection.execute(put, (start, PAYLOAD, batch))
    return jobs / (time.perf_counter() - begun)


async def _postgres_take(connection: AsyncConnection, table: sql.Identifier, jobs: int, batch: int) -> float:
    take = sql.SQL(
        "DELETE FROM {0} WHERE n = ANY(ARRAY("
        "SELECT n FROM {0} ORDER BY n FOR UPDATE SKIP LOCKED LIMIT %s)) RETURNING id, payload"
    ).format(table)
    begun = time.perf_counter()
    for _ in range(0, jobs, batch):
        rows = await (await connection.execute(take, (batch,))).fetchall()
        if len(rows) != batch:
            raise ValueError(f"{len(rows)} rows, not {batch}")
    return jobs / (time.perf_counter() - begun)


def _plain(url: str) -> str:
    """Return a URL without its query, which is the storage's."""
    return url.partition("?")[0]
