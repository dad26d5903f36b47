"""A planted fault that only a lost reply reveals."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.storage.redis.network.connections import RedisConnections
from dibs_conformance.crashes.interrupted_calls import REPLY_CUT, REQUEST_CUT, try_cut_connections
from dibs_conformance.report.values import level_verdict
from dibs_conformance.servers import RedisServer
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.concurrent.test_levels import SHARED


def test_a_silently_repeated_request_is_caught(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug silently repeats each request without a reply, as if it were a read."""
    call = RedisConnections.call

    async def insistent(self: RedisConnections, *arguments: Any, **options: Any) -> Any:
        return await call(self, *arguments, **{**options, "repeatable": True})

    monkeypatch.setattr(RedisConnections, "call", insistent)
    locations = Locations(redis_server.url)
    try:
        found = try_cut_connections(
            LevelPlan(locations=locations, claims=SHARED, seed=1, budget=0, examples=1), 0.0
        )
    finally:
        locations.remove_all()

    assert "broken" == level_verdict(found)
    assert found.failures[0].law in (REQUEST_CUT[0], REPLY_CUT[0])
