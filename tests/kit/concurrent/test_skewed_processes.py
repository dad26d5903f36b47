"""The kit finds a storage whose time depends on the clock of the process that calls it."""

from __future__ import annotations

import time

import pytest
from attrs import frozen

from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.redis.storage import RedisStorage
from dibs.storage.registry import open_storage
from dibs_conformance.concurrent.process_clients import find_wrong_reading, skewed_processes
from dibs_conformance.report import Findings
from dibs_conformance.servers import RedisServer
from dibs_conformance.target import LevelPlan, Locations, OpenStorage

SERVER = Capabilities(durable=True, shared=True, server_clock=True)


@frozen
class ClientTime:
    """A function `open_storage(location, clock)` for a Redis storage that takes the time of its process."""

    url: str

    def __call__(self, location: str, clock: Clock) -> Storage:
        storage = open_storage(self.url, clock, prefix=location)
        assert isinstance(storage, RedisStorage)
        storage._time_argument = lambda now: str(now or time.time_ns() // 1_000_000)  # type: ignore[method-assign]
        return storage


def findings(target: str | OpenStorage, claims: Capabilities) -> Findings:
    locations = Locations(target)
    try:
        return skewed_processes(LevelPlan(locations=locations, claims=claims, seed=1, budget=1))
    finally:
        locations.remove_all()


def test_a_time_of_the_client_is_found(redis_server: RedisServer) -> None:
    found = findings(ClientTime(redis_server.url), SERVER)

    assert "ms really passed" in found.failures[0].why


def test_a_time_that_steps_back_is_found() -> None:
    readings = [(0, 1000, 0), (500, 1500, 10), (0, 1010, 20)]

    assert "stepped back from 1500 to 1010" in str(find_wrong_reading(readings, server_clock=False))


@pytest.mark.parametrize("server_clock", [False, True])
def test_a_jump_is_wrong_only_for_the_clock_of_a_server(server_clock: bool) -> None:  # noqa: FBT001
    why = find_wrong_reading([(0, 1000, 0), (5000, 6010, 10)], server_clock=server_clock)

    assert (why is not None) == server_clock
