"""The kit finds a storage whose time stands still, jumps or steps back after its clock was ahead once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dibs.storage import clock
from dibs.storage.protocol import Clock
from dibs.storage.registry import open_storage
from dibs_conformance import certify
from dibs_conformance.sequential import clocks
from dibs_conformance.sequential.clocks import check_jumped_clock
from dibs_conformance.servers import PostgresServer, RedisServer
from dibs_conformance.target import Locations, OpenStorage
from tests.kit.mutants import lua, sql

STANDS_STILL = r"a lease of 50 ms was alive for 1 s"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "JUMP_PATIENCE", 1.0)


def wrong_results(target: str | OpenStorage, *, durable: bool = True) -> list[str]:
    locations = Locations(target)
    try:
        checked = asyncio.run(check_jumped_clock(locations, durable=durable))
    finally:
        locations.remove_all()
    assert checked is not None
    return checked[1]


def time_stands_still(time_ms: int, highest: int, lead: int) -> tuple[int, int]:
    return max(time_ms, highest), lead


def lead_adds_up(time_ms: int, highest: int, lead: int) -> tuple[int, int]:
    return max(time_ms, highest) + 2 * clock.TOLERANCE, lead


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_time_that_stands_still_is_found(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "storage_time", time_stands_still)
    [why] = wrong_results(f"{scheme}:{tmp_path}/jobs", durable=scheme == "file")

    assert STANDS_STILL in why


def test_time_that_jumps_at_each_step_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "storage_time", lead_adds_up)
    [why] = wrong_results(f"file:{tmp_path}/jobs")

    assert "really passed" in why


def test_time_that_stands_still_in_redis_is_found(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lua.planted("include/queue", "if now + lead < highest - TOLERANCE then", "if false then")(monkeypatch)
    [why] = wrong_results(redis_server.url)

    assert STANDS_STILL in why


def test_time_that_stands_still_in_postgres_is_found(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = sql.planted("numbers", "        now_ms := now_ms + lead_ms;", "        now_ms := now_ms;")
    plant(monkeypatch)
    [why] = wrong_results(postgres_server.url)

    assert STANDS_STILL in why


def test_a_time_that_is_forgotten_is_found() -> None:
    """A durable storage must remember its highest time; here each opening is a new storage."""

    @asynccontextmanager
    async def open_forgetful(location: str, clock: Clock) -> AsyncIterator[Any]:
        async with open_storage("memory:", clock) as storage:
            yield storage

    [why] = wrong_results(open_forgetful)

    assert "after an opening the time was" in why


def test_a_storage_without_a_shared_time_is_spared() -> None:
    """A storage in memory whose openings share nothing cannot be tested, and keeps its level."""

    @asynccontextmanager
    async def open_alone(location: str, clock: Clock) -> AsyncIterator[Any]:
        async with open_storage("memory:", clock) as storage:
            yield storage

    report = certify(open_alone, examples=1, seed=1, level="L0")

    assert clocks.JUMP_LAW[0] in {gap.name for gap in report.levels[0].spared}
    assert () == report.levels[0].unmet
