"""Private servers that the tests break.

A private server is of the same kind as the server of the certified URL, which the tests never touch.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from dibs.storage.registry import parse_scheme
from dibs_conformance.servers import PostgresServer, RedisServer, find_postgres, start_redis
from dibs_conformance.servers.postgres import FAST
from dibs_conformance.servers.processes import STARTUP_SECONDS, Server, make, wait_until

#: Limit of a file's size in bytes. A WAL segment of Postgres (16 MiB) must fit.
LARGEST_FILE: Final = 18 * 1024 * 1024
UNREACHABLE: Final = ("127.0.0.1", 1)


class BreakableServer(ABC):
    """A server that the tests fill, restrict and restart."""

    #: Bytes to enqueue until a filled server is full; 0 if it is full immediately.
    capacity: int

    def __init__(self, server: Server, url: str, name: str) -> None:
        self.process, self.url, self.name = server, url, name

    @abstractmethod
    def fill(self) -> None:
        """Make the server refuse to store more data (see `capacity`)."""

    @abstractmethod
    def free_space(self) -> None:
        """Undo `fill`."""

    @abstractmethod
    def set_read_only(self) -> None:
        """Make the server refuse all writes."""

    @abstractmethod
    def set_writable(self) -> None:
        """Allow writes again."""

    def flush_scripts(self) -> bool:
        """Flush cached scripts. Return False if the server has none."""
        return False


class BreakableRedis(BreakableServer):
    """A Redis that writes and syncs every command to its append-only file before it replies."""

    capacity = 0

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server, server.url, f"Redis {server.version}")
        self._execute = server.execute
        self._forget_code = server.forget_code

    def fill(self) -> None:
        self._execute("CONFIG", "SET", "maxmemory", 1)

    def free_space(self) -> None:
        self._execute("CONFIG", "SET", "maxmemory", 0)

    def set_read_only(self) -> None:
        self._execute("REPLICAOF", *UNREACHABLE)

    def set_writable(self) -> None:
        self._execute("REPLICAOF", "NO", "ONE")

    def flush_scripts(self) -> bool:
        self._forget_code()
        return True


class FileLimitedPostgres(PostgresServer):
    """A Postgres that can be started with a limit on the size of its files."""

    limited = False

    def command(self) -> Sequence[str]:
        if not self.limited:
            return super().command()
        # `ulimit -f` counts blocks of 512 bytes in every POSIX shell. A soft limit needs no privilege.
        limit = f'ulimit -S -f {LARGEST_FILE // 512} && exec "$@"'
        return ["/bin/sh", "-c", limit, "sh", *super().command()]


class BreakablePostgres(BreakableServer):
    """A Postgres whose file sizes can be limited and whose transactions can be made read-only."""

    capacity = LARGEST_FILE

    def __init__(self, server: FileLimitedPostgres) -> None:
        super().__init__(server, server.url, f"Postgres {server.version}")
        self._postgres = server

    def fill(self) -> None:
        self._restart(limited=True)

    def free_space(self) -> None:
        self._restart(limited=False)

    def _restart(self, *, limited: bool) -> None:
        self._postgres.limited = limited
        self._postgres.stop()
        self._postgres.start()

    def set_read_only(self) -> None:
        self._write_setting("default_transaction_read_only = on\n")
        self._wait_for_setting("on")

    def set_writable(self) -> None:
        self._write_setting("")
        self._wait_for_setting("off")

    def _wait_for_setting(self, value: str) -> None:
        """Wait until new connections have this value: the server reloads its settings with a delay."""
        import psycopg  # noqa: PLC0415 - needed for Postgres only, whose storage requires psycopg, too

        with psycopg.connect(self.url, autocommit=True) as connection:

            def is_set() -> bool:
                return connection.execute("SHOW default_transaction_read_only").fetchone() == (value,)

            if not wait_until(is_set, STARTUP_SECONDS):
                raise TimeoutError(f"Postgres did not apply default_transaction_read_only = {value}")

    def _write_setting(self, line: str) -> None:
        (self._postgres.data / "postgresql.auto.conf").write_text(line)
        os.kill(self.process.pid, signal.SIGHUP)


def start_breakable_redis() -> BreakableServer:
    return BreakableRedis(start_redis(appendonly="yes", appendfsync="always"))


def start_breakable_postgres() -> BreakableServer:
    server = FileLimitedPostgres(find_postgres(), FAST)
    return BreakablePostgres(make(server, server.initialise, server.start))


STARTERS: Final[dict[str, Callable[[], BreakableServer]]] = {
    "redis": start_breakable_redis,
    "postgresql": start_breakable_postgres,
    "postgres": start_breakable_postgres,
}


def starter_for(target: object) -> Callable[[], BreakableServer] | None:
    """Return the function that starts a server of the target's kind, or None."""
    return STARTERS.get(parse_scheme(target)) if isinstance(target, str) else None


@contextmanager
def started_server(start: Callable[[], BreakableServer]) -> Iterator[BreakableServer]:
    """Start a server, and remove it with its data at the end. Raises ServerUnavailable."""
    server = start()
    try:
        yield server
    finally:
        server.process.remove()
