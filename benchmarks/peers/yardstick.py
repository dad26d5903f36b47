"""What the machine itself gives in a round, by the fewest calls that a queue could make."""

from __future__ import annotations

from benchmarks import server_yardsticks as bare
from benchmarks.peers.grounds import Ground

JOBS = 10_000


async def measure(by_kind: dict[str, Ground]) -> dict[str, float]:
    """Return jobs a second: one EVALSHA a job, 100 in a pipeline; on Postgres 100 rows a statement."""
    redis, postgres = by_kind["redis"].empty(), by_kind["postgresql"].empty()
    return {
        "redis put": await bare.redis_put(redis, JOBS, 100),
        "redis take + finish": await bare.redis_take_and_finish(redis, JOBS, 100),
        "postgresql put": await bare.postgres_put(postgres, JOBS, 100),
        "postgresql take + finish": await bare.postgres_take(postgres, JOBS, 100),
    }
