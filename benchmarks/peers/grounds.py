"""The servers and folders that the race is run on: emptied before each turn, asked what it cost them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
from msgspec import Struct
from psycopg import sql
from redis import Redis

from dibs_conformance.servers import start_postgres, start_redis


class Cost(Struct, frozen=True):
    """What a server has spent since it started."""

    cpu_us: float = 0.0
    commands: float = 0
    bytes: float = 0

    def since(self, before: Cost, jobs: int) -> Cost:
        """Return what was spent on each of so many jobs."""
        return Cost(
            (self.cpu_us - before.cpu_us) / jobs,
            round((self.commands - before.commands) / jobs, 2),
            round((self.bytes - before.bytes) / jobs),
        )


class Ground(Protocol):
    """Where one kind of peers runs."""

    def empty(self) -> str:
        """Remove all that was there and return the URL for the next turn."""
        ...

    def cost(self) -> Cost | None:
        """Return what the server has spent, None where there is none or it does not say."""
        ...


class OnRedis:
    """A Redis that keeps nothing on disk."""

    def __init__(self, url: str) -> None:
        """Connect."""
        self._url = url
        self._redis = Redis.from_url(url)

    def empty(self) -> str:
        """Flush everything: the server is ours."""
        self._redis.flushall()
        return self._url

    def cost(self) -> Cost:
        """Read INFO, whose own command is counted with the rest."""
        told = self._redis.info()
        cpu = float(told["used_cpu_user"]) + float(told["used_cpu_sys"])
        traffic = int(told["total_net_input_bytes"]) + int(told["total_net_output_bytes"])
        return Cost(cpu * 1e6, int(told["total_commands_processed"]), traffic)


class OnPostgres:
    """A Postgres as durable as it is by default, with a new database for each turn."""

    def __init__(self, url: str) -> None:
        """Connect."""
        self._url = url
        self._turn = 0

    def empty(self) -> str:
        """Drop the last turn's database, however many sessions it has, and create the next."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            for verb, options in (("DROP DATABASE IF EXISTS", " WITH (FORCE)"), ("CREATE DATABASE", "")):
                name = sql.Identifier(f"turn_{self._turn}")
                connection.execute(sql.SQL(verb) + sql.SQL(" ") + name + sql.SQL(options))
                self._turn += verb.startswith("DROP")
        return self._url.rpartition("/")[0] + f"/turn_{self._turn}"

    def cost(self) -> None:
        """Postgres does not say what its processes spent."""


class OnFiles:
    """A folder."""

    def __init__(self) -> None:
        """Make none yet."""
        self._folder: Path | None = None

    def empty(self) -> str:
        """Remove the last turn's folder and make the next, on the disk where the benchmarks are run."""
        self.close()
        self._folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
        return f"file:{self._folder}"

    def cost(self) -> None:
        """There is no server."""

    def close(self) -> None:
        """Remove what is left."""
        if self._folder:
            shutil.rmtree(self._folder)


class InMemory:
    """Nothing but the process of the peer."""

    def empty(self) -> str:
        """Each process begins empty."""
        return "memory:"

    def cost(self) -> None:
        """There is no server."""


@contextmanager
def grounds() -> Iterator[tuple[dict[str, Ground], str]]:
    """Start what the peers run on; yield it by kind, and in words."""
    files = OnFiles()
    with start_redis() as redis, start_postgres(fsync="on", shared_buffers="128MB") as postgres:
        try:
            yield (
                {
                    "redis": OnRedis(redis.url),
                    "postgresql": OnPostgres(postgres.url),
                    "file": files,
                    "memory": InMemory(),
                },
                f"Redis {redis.version}, nothing on disk; Postgres {postgres.version}, fsync on",
            )
        finally:
            files.close()
