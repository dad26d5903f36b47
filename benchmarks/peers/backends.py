"""The servers of a comparison, and the rates of their baselines."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
from attrs import define, field
from psycopg import sql
from redis import Redis

from benchmarks import baselines
from benchmarks.peers.environments import Usage, tree_cpu_us
from dibs_conformance.servers import PostgresServer, start_postgres, start_redis

#: The settings of Postgres: its defaults, but no checkpoint within a measurement. So the WAL has no images of
#: whole pages, whose number depends on the time of the last checkpoint.
POSTGRES: Final = {
    "fsync": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}


class Backend(Protocol):
    """A server, folder or memory that is emptied before each measurement."""

    def reset(self) -> str:
        """Delete all data and return the URL for the next measurement."""
        ...

    def usage(self) -> Usage | None:
        """Return the usage since the start of the server; None if there is no server."""
        ...

    def size(self, *, compact: bool = False) -> int | None:
        """Return the bytes that all data takes; None if they are not known.

        `compact` first gives the space of deleted rows back.
        """
        ...

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        """Return whether jobs are left, by the keys or SQL expressions of a system."""
        ...


class RedisBackend:
    """A Redis without persistence."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = Redis.from_url(url)
        self._reads = 0

    def reset(self) -> str:
        """Flush the whole server; only the benchmarks use it."""
        self._redis.flushall()
        return self._url

    def usage(self) -> Usage:
        """Read INFO. The count of commands is without those of this method."""
        info = self._redis.info()
        self._reads += 1
        cpu = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        traffic = int(info["total_net_input_bytes"]) + int(info["total_net_output_bytes"])
        return Usage(cpu * 1e6, int(info["total_commands_processed"]) - self._reads, traffic)

    def size(self, *, compact: bool = False) -> int:
        del compact
        return int(self._redis.info("memory")["used_memory"])

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        keys = [one.format(queue=queue) for one in expressions for queue in queues]
        kinds = self._redis.pipeline()
        for key in keys:
            kinds.type(key)
        sizes = self._redis.pipeline()
        read = {b"list": sizes.llen, b"zset": sizes.zcard, b"hash": sizes.hlen, b"set": sizes.scard}
        for key, kind in zip(keys, kinds.execute(), strict=True):
            if kind != b"none":
                read[kind](key)
        return any(sizes.execute())


@define
class PostgresBackend:
    """A Postgres that commits to disk, and a new database for each measurement."""

    _server: PostgresServer
    _number: int = field(default=0, init=False)
    _connection: psycopg.Connection | None = field(default=None, init=False)

    def reset(self) -> str:
        """Drop the last database, even if sessions are connected to it, and create the next.

        DROP DATABASE makes a checkpoint, so that none is due soon.
        """
        self.close()
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for verb, options in (("DROP DATABASE IF EXISTS", " WITH (FORCE)"), ("CREATE DATABASE", "")):
                name = sql.Identifier(f"benchmark_{self._number}")
                connection.execute(sql.SQL(verb) + sql.SQL(" ") + name + sql.SQL(options))
                self._number += verb.startswith("DROP")
        return self._database

    def close(self) -> None:
        """Close the connection to the current database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _database(self) -> str:
        return self._server.url.rpartition("/")[0] + f"/benchmark_{self._number}"

    def usage(self) -> Usage:
        """Return the CPU time of all processes of the server, and the position in the WAL."""
        written = self._query("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')")
        return Usage(tree_cpu_us(self._server.pid), wal_bytes=float(written))

    def size(self, *, compact: bool = False) -> int:
        tables = self._query(
            "SELECT array_agg(format('%I.%I', n.nspname, c.relname)) FROM pg_class c JOIN pg_namespace n "
            "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname !~ '^pg_|^information_schema$'"
        )
        if compact:
            for table in tables or ():
                self._query(f"VACUUM FULL {table}", returns=False)
        return sum(int(self._query(f"SELECT pg_total_relation_size('{table}')")) for table in tables or ())

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        del queues
        return any(self._query(f"SELECT {one}") for one in expressions)

    def _query(self, text: str, *, returns: bool = True) -> Any:
        if self._connection is None:
            self._connection = psycopg.connect(self._database, autocommit=True)
        cursor = self._connection.execute(text.encode())
        row = cursor.fetchone() if returns else None
        return row[0] if row else ""


@define
class FileBackend:
    """A temporary folder in the current directory."""

    _folder: Path | None = field(default=None, init=False)

    def reset(self) -> str:
        """Delete the last folder and create the next, on the disk of the current directory."""
        self.close()
        self._folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
        return f"file:{self._folder}"

    def usage(self) -> None:
        """Return None: there is no server."""

    def size(self, *, compact: bool = False) -> int | None:
        """Return the allocated blocks in bytes."""
        del compact
        assert self._folder
        return sum(
            os.lstat(Path(folder, name)).st_blocks * 512
            for folder, _, names in os.walk(self._folder)
            for name in names
        )

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        """Raise NotImplementedError: the programs report the end themselves."""
        raise NotImplementedError

    def close(self) -> None:
        """Delete the last folder."""
        if self._folder:
            shutil.rmtree(self._folder)


class MemoryBackend:
    """The memory of the peer's process."""

    def reset(self) -> str:
        """Return an empty URL: each new process starts empty."""
        return ""

    def usage(self) -> None:
        """Return None: there is no server."""

    def size(self, *, compact: bool = False) -> None:
        """Return None: the memory belongs to the peer."""
        del compact

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        """Raise NotImplementedError: the programs report the end themselves."""
        raise NotImplementedError


@contextmanager
def start_backends() -> Iterator[tuple[dict[str, Backend], dict[str, str]]]:
    """Start the servers. Yield the backends by kind, and the versions of the servers."""
    files = FileBackend()
    with start_redis() as redis, start_postgres(**POSTGRES) as postgres:
        databases = PostgresBackend(postgres)
        try:
            yield (
                {
                    "redis": RedisBackend(redis.url),
                    "postgresql": databases,
                    "file": files,
                    "memory": MemoryBackend(),
                },
                {"redis": redis.version, "postgresql": postgres.version},
            )
        finally:
            databases.close()
            files.close()


JOBS = 10_000


async def measure_baselines(by_kind: dict[str, Backend]) -> dict[str, float]:
    """Return jobs a second.

    On Redis one EVALSHA a job, 100 in a pipeline; on Postgres 100 rows a statement.
    """
    redis, postgres = by_kind["redis"].reset(), by_kind["postgresql"].reset()
    return {
        "redis put": await baselines.redis_put(redis, JOBS, 100),
        "redis take + finish": await baselines.redis_take_and_finish(redis, JOBS, 100),
        "postgresql put": await baselines.postgres_put(postgres, JOBS, 100),
        "postgresql take + finish": await baselines.postgres_take(postgres, JOBS, 100),
    }
