"""Private servers that may be broken: of the same kind as the one a URL names, which is never touched."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from dibs.storage.registry import scheme_of
from dibs_conformance.servers import PostgresServer, RedisServer, find_postgres, start_redis
from dibs_conformance.servers.postgres import FAST
from dibs_conformance.servers.processes import STARTUP_SECONDS, Server, wait_until

#: No file may grow beyond this, bytes: a segment of Postgres' own log has to fit.
LARGEST_FILE: Final = 18 * 1024 * 1024
NOWHERE: Final = ("127.0.0.1", 1)


class Station(ABC):
    """A server, and what may be done to it."""

    #: How much has to be enqueued until it is full, once it may not grow; 0 when it is full at once.
    room: int

    def __init__(self, server: Server, url: str, name: str) -> None:
        self.server, self.url, self.name = server, url, name

    @abstractmethod
    def fill(self) -> None:
        """Leave no room for more."""

    @abstractmethod
    def relieve(self) -> None:
        """Make room again."""

    @abstractmethod
    def forbid(self) -> None:
        """Refuse all writes."""

    @abstractmethod
    def allow(self) -> None:
        """Take writes again."""

    def forget(self) -> bool:
        """Forget what it was only told for speed; False when there is nothing of the kind."""
        return False


class RedisStation(Station):
    """A Redis that writes every command down before it answers."""

    room = 0

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server, server.url, f"Redis {server.version}")
        self._ask = server.execute

    def fill(self) -> None:
        self._ask("CONFIG", "SET", "maxmemory", 1)

    def relieve(self) -> None:
        self._ask("CONFIG", "SET", "maxmemory", 0)

    def forbid(self) -> None:
        self._ask("REPLICAOF", *NOWHERE)

    def allow(self) -> None:
        self._ask("REPLICAOF", "NO", "ONE")

    def forget(self) -> bool:
        self._ask("SCRIPT", "FLUSH")
        return True


class ConfinedPostgres(PostgresServer):
    """A Postgres whose files may not grow beyond a size, while it is told so at its start."""

    confined = False

    def command(self) -> Sequence[str]:
        if not self.confined:
            return super().command()
        # Blocks of 512 bytes, in every shell; only the soft limit, which needs no right.
        limit = f'ulimit -S -f {LARGEST_FILE // 512} && exec "$@"'
        return ["/bin/sh", "-c", limit, "sh", *super().command()]


class PostgresStation(Station):
    """A Postgres whose files may not grow, or whose transactions may not write."""

    room = LARGEST_FILE

    def __init__(self, server: ConfinedPostgres) -> None:
        super().__init__(server, server.url, f"Postgres {server.version}")
        self._postgres = server

    def fill(self) -> None:
        self._start(confined=True)

    def relieve(self) -> None:
        self._start(confined=False)

    def _start(self, *, confined: bool) -> None:
        self._postgres.confined = confined
        self._postgres.stop()
        self._postgres.start()

    def forbid(self) -> None:
        self._set("default_transaction_read_only = on\n")
        self._await_setting("on")

    def allow(self) -> None:
        self._set("")
        self._await_setting("off")

    def _await_setting(self, value: str) -> None:
        """Wait until new connections have it: the server reads its settings when it comes to that."""
        import psycopg  # noqa: PLC0415 - only for a Postgres, whose storage needs it as well

        with psycopg.connect(self.url, autocommit=True) as connection:

            def has_it() -> bool:
                return connection.execute("SHOW default_transaction_read_only").fetchone() == (value,)

            if not wait_until(has_it, STARTUP_SECONDS):
                raise TimeoutError(f"Postgres did not take default_transaction_read_only = {value}")

    def _set(self, line: str) -> None:
        (self._postgres.data / "postgresql.auto.conf").write_text(line)
        os.kill(self.server.pid, signal.SIGHUP)


def redis_station() -> Station:
    return RedisStation(start_redis(appendonly="yes", appendfsync="always"))


def postgres_station() -> Station:
    server = ConfinedPostgres(find_postgres(), FAST)
    try:
        server.initialise()
        server.start()
    except BaseException:
        server.remove()
        raise
    return PostgresStation(server)


STARTERS: Final[dict[str, Callable[[], Station]]] = {
    "redis": redis_station,
    "postgresql": postgres_station,
    "postgres": postgres_station,
}


def starter_for(target: object) -> Callable[[], Station] | None:
    """What starts a server like the target's, if we know how."""
    return STARTERS.get(scheme_of(target)) if isinstance(target, str) else None


@contextmanager
def started(start: Callable[[], Station]) -> Iterator[Station]:
    """Start a station, and leave no trace of it. Raises Missing."""
    made = start()
    try:
        yield made
    finally:
        made.server.remove()
