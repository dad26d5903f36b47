"""The scenarios, the baselines and the tables of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import baselines
from benchmarks.allocations import measure_allocations
from benchmarks.client_calls import round_trips
from benchmarks.scenarios import SCENARIOS, Scenario, fill, requests
from benchmarks.storages import empty_storage

from dibs.storage.registry import open_storage


@pytest.mark.parametrize("url", ["memory:", "file:NAME"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_every_scenario_runs_its_jobs(url: str, scenario: Scenario, tmp_path: Path) -> None:
    """After a scenario each job is waiting, active or completed, exactly once."""
    async with open_storage(url.replace("NAME", str(tmp_path))) as storage:
        rate = await scenario.run(storage, 200)
        (queue,) = await storage.queues()
        counts = (await storage.counts([queue.name]))[queue.name]

    assert rate > 0
    assert counts.completed in {0, 200}
    assert counts.waiting + counts.active + counts.completed in {200, 2 * 50 * 200}


async def test_fill_enqueues_all_jobs() -> None:
    """Also when the jobs need more than one batch."""
    async with open_storage("memory:") as storage:
        await fill(storage, "q", requests(2_345))

        assert (await storage.counts(["q"]))["q"].waiting == 2_345


def server_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of the server of a kind of storage, or ""."""
    fixture = {"redis": "redis_server", "postgresql": "postgres_server"}.get(kind)
    return str(request.getfixturevalue(fixture).url) if fixture else ""


@pytest.mark.parametrize("kind", baselines.BASELINES)
async def test_every_yardstick_measures(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A baseline returns a rate for both of its steps. Other storages have no baseline."""
    monkeypatch.chdir(tmp_path)
    url = server_url(kind, request)

    for name in ("put, 1", "put, 100", "take, 10", "take, 100"):
        assert (await baselines.measure(kind, url, name, 200) or 0) > 0
    assert await baselines.measure("elsewhere", url, "put, 100", 200) is None


async def test_round_trips_are_timed_one_by_one() -> None:
    """Each job returns its result, and the storage is still open afterwards."""
    async with open_storage("memory:") as storage:
        times = await round_trips(storage, 5)

        assert len(times) == 5
        assert all(ms > 0 for ms in times)
        assert (await storage.counts(["round-trip"]))["round-trip"].active == 0


async def test_the_table_holds_every_scenario_with_its_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ratio of a row is the median of the ratios within each round."""
    monkeypatch.chdir(tmp_path)
    rates = {
        "memory:": {s.name: [10.0, 30.0] for s in SCENARIOS}
        | {f"baseline: {s.name}": [100.0, 100.0] for s in SCENARIOS}
    }

    rows = command.rate_rows(rates)

    assert [s.name for s in SCENARIOS] == [row["scenario"] for row in rows]
    assert [0.2] * len(SCENARIOS) == [row["ratio"] for row in rows]


def test_round_trips_have_a_median_and_a_99th_percentile() -> None:
    (row,) = command.round_trip_rows({"memory:": {command.ROUND_TRIP: [float(n) for n in range(1, 1000)]}})

    assert (row["storage"], row["p50_ms"], row["p99_ms"]) == ("memory", 500, 990)


async def test_a_measured_storage_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current directory is empty again after a measurement of files."""
    monkeypatch.chdir(tmp_path)

    async with empty_storage("file:NAME") as storage:
        await fill(storage, "q", requests(1))

    assert list(tmp_path.iterdir()) == []


async def test_allocations_are_counted_for_each_verb() -> None:
    """In memory, a waiting job keeps its blocks; other allocations of the call are freed."""
    async with open_storage("memory:") as storage:
        rows = await measure_allocations(storage)

    assert ["enqueue", "claim", "settle"] == [row["verb"] for row in rows]
    assert 10 > rows[0]["blocks_held"] > 1
    assert all(row["peak_bytes"] > 0 for row in rows)
