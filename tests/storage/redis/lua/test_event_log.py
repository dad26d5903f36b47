"""A step that writes beyond `log_bytes` also removes the oldest entries of the log, without a prune."""

from __future__ import annotations

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

LOG_BYTES = 1_000
#: Steps of one event each, which need several times LOG_BYTES.
STEPS = 100


async def test_a_write_keeps_the_log_below_its_size(storage: RedisStorage, redis_server: RedisServer) -> None:
    await storage.configure("q", SettingsPatch(log_level="all", log_bytes=LOG_BYTES))
    for step in range(STEPS):
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=f"{step:03}"))])

    entries = redis_server.execute("XRANGE", f"{storage._queue_prefix('q')}log", "-", "+")
    page = await storage.events("q", limit=STEPS)
    assert LOG_BYTES // 2 < sum(len(fields[1]) for _, fields in entries) <= LOG_BYTES
    assert f"{STEPS - 1:03}" == page.events[-1][1].id
    assert len(entries) == len(page.events) < STEPS
