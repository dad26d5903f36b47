"""The servers and folders on which the systems run. Each measurement gets an empty one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
from attrs import define, field, frozen
from psycopg import sql
from redis import Redis

from dibs_conformance.servers import start_postgres, start_redis


@frozen
class ServerUsage:
    """CPU time, commands and network traffic of a server, since its start or for each job."""

    cpu_us: float = 0.0
    commands: float = 0
    bytes: float = 0

    def per_job(self, before: ServerUsage, jobs: int) -> ServerUsage:
        """Return the usage since `before`, divided by `jobs`."""
        return ServerUsage(
            (self.cpu_us - before.cpu_us) / jobs,
            round((self.commands - before.commands) / jobs, 2),
            round((self.bytes - before.bytes) / jobs),
        )


class Backend(Protocol):
    """A server, folder or memory that is emptied before each measurement."""

    def reset(self) -> str:
        """Delete all data and return the URL for the next measurement."""
        ...

    def usage(self) -> ServerUsage | None:
        """Return the usage since the start of the server; None if it is not known."""
        ...


class RedisBackend:
    """A Redis without persistence."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = Redis.from_url(url)

    def reset(self) -> str:
        """Flush the whole server; only the benchmarks use it."""
        self._redis.flushall()
        return self._url

    def usage(self) -> ServerUsage:
        """Read INFO. The command INFO itself is included in the count."""
        info = self._redis.info()
        cpu = float(info["used_cpu_user"]) + float(info["used_cpu_sys"])
        traffic = int(info["total_net_input_bytes"]) + int(info["total_net_output_bytes"])
        return ServerUsage(cpu * 1e6, int(info["total_commands_processed"]), traffic)


@define
class PostgresBackend:
    """A Postgres with its default durability, and a new database for each measurement."""

    _url: str
    _number: int = field(default=0, init=False)

    def reset(self) -> str:
        """Drop the last database, even if sessions are connected to it, and create the next."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            for verb, options in (("DROP DATABASE IF EXISTS", " WITH (FORCE)"), ("CREATE DATABASE", "")):
                name = sql.Identifier(f"benchmark_{self._number}")
                connection.execute(sql.SQL(verb) + sql.SQL(" ") + name + sql.SQL(options))
                self._number += verb.startswith("DROP")
        return self._url.rpartition("/")[0] + f"/benchmark_{self._number}"

    def usage(self) -> None:
        """Return None: Postgres does not report the CPU time of its processes."""


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

    def close(self) -> None:
        """Delete the last folder."""
        if self._folder:
            shutil.rmtree(self._folder)


class MemoryBackend:
    """The memory of the peer's process."""

    def reset(self) -> str:
        """Return the URL: each new process starts empty."""
        return "memory:"

    def usage(self) -> None:
        """Return None: there is no server."""


@contextmanager
def start_backends() -> Iterator[tuple[dict[str, Backend], str]]:
    """Start the servers. Yield the backends by kind, and a description for the reports."""
    files = FileBackend()
    with start_redis() as redis, start_postgres(fsync="on", shared_buffers="128MB") as postgres:
        try:
            yield (
                {
                    "redis": RedisBackend(redis.url),
                    "postgresql": PostgresBackend(postgres.url),
                    "file": files,
                    "memory": MemoryBackend(),
                },
                f"Redis {redis.version} without persistence; Postgres {postgres.version} with fsync",
            )
        finally:
            files.close()
