"""A planted fault that only a failing server reveals. The storages of dibs are tested in
tests/kit/test_certify_levels.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import StorageFull
from dibs.model.results import EnqueueResult
from dibs.storage.redis import RedisStorage
from dibs_conformance.faults.outages import servers_that_fail
from dibs_conformance.report.values import level_verdict
from dibs_conformance.servers import RedisServer
from tests.kit.concurrent.test_levels import ALONE, SHARED, run_level


def test_a_storage_without_server_can_reach_l3() -> None:
    found = run_level(servers_that_fail, "memory:", ALONE, 1)

    assert "not tested" == level_verdict(found)
    assert "L3" in found.untested[0].why


def test_a_refused_enqueue_answered_as_queued_is_caught(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug answers `queued` to an enqueue that a full server refuses."""
    enqueue = RedisStorage.enqueue

    async def hopeful(self: RedisStorage, queue: str, requests: Any, **options: Any) -> Any:
        try:
            return await enqueue(self, queue, requests, **options)
        except StorageFull:
            return [EnqueueResult("queued", "nothing", 1, 1) for _ in requests]

    monkeypatch.setattr(RedisStorage, "enqueue", hopeful)

    assert "broken" == level_verdict(run_level(servers_that_fail, redis_server.url, SHARED, 1))
