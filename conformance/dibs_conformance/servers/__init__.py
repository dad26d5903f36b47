"""Private Redis and Postgres servers for tests. The package needs only the standard library and attrs.

    with start_redis() as server:
        ...  # server.url and server.version; server.kill() and server.start() simulate a crash

Each server has its own folder (mode 0700, removed at the end), its own port and a random password. If a
server cannot be started, the functions raise ServerUnavailable with the reason.
"""

from dibs_conformance.servers.postgres import PostgresServer, start_postgres
from dibs_conformance.servers.processes import (
    ServerUnavailable,
    find_postgres,
    find_redis,
    find_valkey,
)
from dibs_conformance.servers.redis import RedisServer, start_redis, start_valkey

__all__ = [
    "PostgresServer",
    "RedisServer",
    "ServerUnavailable",
    "find_postgres",
    "find_redis",
    "find_valkey",
    "start_postgres",
    "start_redis",
    "start_valkey",
]
