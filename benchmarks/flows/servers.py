"""The servers of the comparison, and the requests that they served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

import psycopg
from attrs import define, field, frozen
from redis import Redis

from benchmarks.peers.backends import POSTGRES, PostgresBackend, RedisBackend
from dibs_conformance.servers import start_postgres, start_redis
from dibs_conformance.servers.binaries import find_postgres

STATEMENTS: Final = "pg_stat_statements"


@frozen
class Requests:
    """The requests to a server since its start. A figure that the server does not report is None."""

    #: Reads from the sockets of clients by Redis; a pipeline is one read, or a few.
    reads: float | None = None
    #: Commands of Redis, including those that its scripts call.
    commands: float | None = None
    #: Statements that clients sent to Postgres.
    statements: float | None = None
    #: Transactions that Postgres committed, up to a second late.
    commits: float | None = None

    def per_node(self, before: Requests, nodes: int) -> Requests:
        """Return the requests since `before`, divided by `nodes`."""

        def part(now: float | None, then: float | None) -> float | None:
            return None if now is None or then is None else (now - then) / nodes

        return Requests(
            part(self.reads, before.reads),
            part(self.commands, before.commands),
            part(self.statements, before.statements),
            part(self.commits, before.commits),
        )


class FlowServer(Protocol):
    """A server that is emptied before each measurement."""

    def reset(self) -> str:
        """Delete all data and return the URL for the next measurement."""
        ...

    def requests(self) -> Requests:
        """Return the requests since the start, without those of this method."""
        ...


@define
class FlowRedis:
    """A Redis without persistence."""

    _url: str
    _backend: RedisBackend = field(init=False)
    _redis: Redis = field(init=False)
    _asked: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._backend = RedisBackend(self._url)
        self._redis = Redis.from_url(self._url)

    def reset(self) -> str:
        return self._backend.reset()

    def requests(self) -> Requests:
        info = self._redis.info("stats")
        self._asked += 1
        reads, commands = int(info["total_reads_processed"]), int(info["total_commands_processed"])
        return Requests(reads=reads - self._asked, commands=commands - self._asked)


@define
class FlowPostgres:
    """A Postgres that commits to disk, with pg_stat_statements if its extension is installed."""

    _url: str
    _backend: PostgresBackend
    _connection: psycopg.Connection = field(init=False)
    _has_statements: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Connect to another database than the systems, so that own statements are not counted."""
        self._connection = psycopg.connect(self._url, autocommit=True)
        libraries = self._connection.execute("SHOW shared_preload_libraries").fetchone()
        self._has_statements = libraries == (STATEMENTS,)
        if self._has_statements:
            self._connection.execute(f"CREATE EXTENSION {STATEMENTS}".encode())

    def reset(self) -> str:
        return self._backend.reset()

    def requests(self) -> Requests:
        commits = self._count(
            "SELECT coalesce(sum(xact_commit), 0) FROM pg_stat_database WHERE datname LIKE 'benchmark_%'"
        )
        if not self._has_statements:
            return Requests(commits=commits)
        statements = self._count(
            f"SELECT coalesce(sum(calls), 0) FROM {STATEMENTS} JOIN pg_database ON dbid = oid "  # noqa: S608
            "WHERE toplevel AND datname LIKE 'benchmark_%'"
        )
        return Requests(statements=statements, commits=commits)

    def _count(self, query: str) -> float:
        row = self._connection.execute(query.encode()).fetchone()
        return float(row[0]) if row else 0.0

    def close(self) -> None:
        self._connection.close()
        self._backend.close()


def postgres_settings() -> dict[str, str]:
    """Return the settings of Postgres, which load pg_stat_statements if this Postgres has it."""
    found = find_postgres().path
    controls = [
        *(found.parent / "share").rglob(f"{STATEMENTS}.control"),
        *Path("/usr/share/postgresql").glob(f"{found.parent.name}/extension/{STATEMENTS}.control"),
    ]
    return {**POSTGRES, **({"shared_preload_libraries": STATEMENTS} if controls else {})}


@contextmanager
def start_servers(kinds: set[str]) -> Iterator[tuple[dict[str, FlowServer], dict[str, str]]]:
    """Start the servers of these kinds. Yield them by kind, and their versions."""
    by_kind: dict[str, FlowServer] = {}
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        if "redis" in kinds:
            redis = stack.enter_context(start_redis())
            by_kind["redis"], versions["redis"] = FlowRedis(redis.url), redis.version
        if "postgresql" in kinds:
            postgres = stack.enter_context(start_postgres(**postgres_settings()))
            server = FlowPostgres(postgres.url, PostgresBackend(postgres))
            stack.callback(server.close)
            by_kind["postgresql"], versions["postgresql"] = server, postgres.version
        yield by_kind, versions
