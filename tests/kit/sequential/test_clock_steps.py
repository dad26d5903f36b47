"""The kit finds a storage whose system clock takes a client's time, stands still, or steps back."""
# ruff: noqa: ARG005 - a planted function has the arguments of the original and uses fewer of them

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import Any

import pytest

from dibs.storage import checks
from dibs.storage.indexed.index import Index
from dibs.storage.memory import MemoryStorage
from dibs.storage.postgres.session import PostgresSession
from dibs.storage.redis.session import RedisSession
from dibs_conformance import certify
from dibs_conformance.sequential import clocks
from dibs_conformance.sequential.capabilities import keeps_server_clock
from dibs_conformance.sequential.clocks import SHIFT, check_clock_steps, shifted_clock
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import Locations

Patch = pytest.MonkeyPatch


def wrong_results(url: str, handles: int = 2) -> list[str]:
    locations = Locations(url)
    try:
        return asyncio.run(check_clock_steps(locations, handles=handles))[1]
    finally:
        locations.remove_all()


def is_server_clock(url: str) -> bool:
    locations = Locations(url)
    try:
        return asyncio.run(keeps_server_clock(locations))
    finally:
        locations.remove_all()


def plant_clock(patch: Patch, read: Any) -> None:
    """Make memory take its time from `read(storage, index, now)`."""

    def mutant(self: MemoryStorage, index: Index, now: int | None) -> bool:
        index.now = read(self, index, now)
        return False

    patch.setattr(MemoryStorage, "_advance_clock", mutant)


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_clock_that_stands_still_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(clocks, "PATIENCE", 0.2)
    monkeypatch.setattr(clocks, "find_accepted_times", no_errors)
    plant_clock(monkeypatch, lambda storage, index, now: index.now or clock_ms())

    [why] = wrong_results("memory:")

    assert "stood still" in why


def test_a_clock_that_steps_back_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(clocks, "find_accepted_times", no_errors)
    plant_clock(monkeypatch, lambda storage, index, now: clock_ms())

    [why] = wrong_results("memory:")

    assert "stepped back" in why


def test_a_floor_for_each_handle_is_found(monkeypatch: Patch) -> None:
    """The time of one handle never steps back, but a second handle may have an earlier time."""
    floors: dict[int, int] = {}

    def read(storage: MemoryStorage, index: Index, now: int | None) -> int:
        floors[id(storage)] = max(floors.get(id(storage), 0), clock_ms())
        return floors[id(storage)]

    monkeypatch.setattr(clocks, "find_accepted_times", no_errors)
    plant_clock(monkeypatch, read)

    assert [] == wrong_results("memory:", handles=1)
    floors.clear()
    [why] = wrong_results("memory:")
    assert "stepped back" in why


async def no_errors(storage: object) -> list[str]:
    return []


def test_a_time_of_the_caller_is_found(monkeypatch: Patch) -> None:
    """Without the check, each verb would take the time of its caller, or ignore it silently."""
    monkeypatch.setattr(checks, "check_now", lambda now, *, manual: None)

    wrong = wrong_results("memory:")

    assert len([*clocks.calls_with_now()]) == len(wrong)
    assert "claim accepted `now` with the system's clock; expected Refused" in wrong


def test_a_client_clock_in_redis_is_found(redis_server: RedisServer, monkeypatch: Patch) -> None:
    monkeypatch.setattr(RedisSession, "_time_argument", lambda self, now: str(now or clock_ms()))

    assert not is_server_clock(redis_server.url)


def test_a_client_clock_in_postgres_is_found(postgres_server: PostgresServer, monkeypatch: Patch) -> None:
    monkeypatch.setattr(PostgresSession, "_time_parameter", lambda self, now: now or clock_ms())

    assert not is_server_clock(postgres_server.url)


def test_a_client_clock_is_a_false_claim(monkeypatch: Patch) -> None:
    """The report names a storage that claims `server_clock` and takes the clock of its process."""
    claims = MemoryStorage.capabilities
    monkeypatch.setattr(MemoryStorage, "capabilities", type(claims)(manual_clock=True, server_clock=True))

    report = certify("memory:", examples=1, seed=1)

    assert not report.certified
    assert "server_clock" in {failure.law for failure in report.failures}


def test_the_clock_is_shifted_in_every_module_and_comes_back() -> None:
    right = time.time()
    with shifted_clock(SHIFT):
        assert time.time() - right > SHIFT / 2000
        assert time.time_ns() / 1e9 - right > SHIFT / 2000
        assert dt.datetime.now(dt.UTC).timestamp() - right > SHIFT / 2000

    assert time.time() - right < SHIFT / 2000
