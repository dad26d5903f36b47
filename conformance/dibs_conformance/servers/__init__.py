"""Private real servers for tests: found, started, waited for and stopped. Standard library only.

    with start_redis() as server:
        ...  # server.url, server.version; server.kill() and server.start() for the rough part

Each server has a folder of its own (0700, removed at the end), a port nobody else uses and a password
nobody else knows. Raises Missing when there is no server to start, with the reason.
"""

from dibs_conformance.servers.binaries import ServerUnavailable, find_postgres, find_redis
from dibs_conformance.servers.cluster import RedisCluster, start_redis_cluster
from dibs_conformance.servers.postgres import PostgresServer, start_postgres
from dibs_conformance.servers.redis import RedisServer, start_redis

__all__ = [
    "ServerUnavailable",
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "find_postgres",
    "find_redis",
    "start_postgres",
    "start_redis",
    "start_redis_cluster",
]
