"""The baselines of a round: the rates of the fewest calls that a queue could make on this machine."""

from __future__ import annotations

from benchmarks import server_baselines
from benchmarks.peers.backends import Backend

JOBS = 10_000


async def measure(by_kind: dict[str, Backend]) -> dict[str, float]:
    """Return jobs a second.

    On Redis one EVALSHA a job, 100 in a pipeline; on Postgres 100 rows a statement.
    """
    redis, postgres = by_kind["redis"].reset(), by_kind["postgresql"].reset()
    return {
        "redis put": await server_baselines.redis_put(redis, JOBS, 100),
        "redis take + finish": await server_baselines.redis_take_and_finish(redis, JOBS, 100),
        "postgresql put": await server_baselines.postgres_put(postgres, JOBS, 100),
        "postgresql take + finish": await server_baselines.postgres_take(postgres, JOBS, 100),
    }
