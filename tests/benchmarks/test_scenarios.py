"""The benchmarks run, and count jobs that were really done."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import yardsticks
from benchmarks.allocations import allocations
from benchmarks.places import empty_place
from benchmarks.scenarios import SCENARIOS, Scenario, fill, requests
from benchmarks.through_the_client import round_trips

from dibs.storage.registry import open_storage


@pytest.mark.parametrize("url", ["memory:", "file:PLACE"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_every_scenario_does_its_jobs(url: str, scenario: Scenario, tmp_path: Path) -> None:
    """A scenario leaves its queue with each job waiting or completed: none lost, none done twice."""
    async with open_storage(url.replace("PLACE", str(tmp_path))) as storage:
        rate = await scenario.run(storage, 200)
        (queue,) = await storage.queues()
        counts = (await storage.counts([queue.name]))[queue.name]

    assert rate > 0
    assert counts.completed in {0, 200}
    assert counts.waiting + counts.active + counts.completed in {200, 2 * 50 * 200}


async def test_fill_enqueues_what_it_is_given() -> None:
    """More than one batch arrives whole."""
    async with open_storage("memory:") as storage:
        await fill(storage, "q", requests(2_345))

        assert (await storage.counts(["q"]))["q"].waiting == 2_345


def server_url(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of the server a kind of storage needs, if it needs one."""
    fixture = {"redis": "redis_server", "postgresql": "postgres_server"}.get(kind)
    return str(request.getfixturevalue(fixture).url) if fixture else ""


@pytest.mark.parametrize("kind", yardsticks.YARDSTICKS)
async def test_every_yardstick_measures(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A yardstick returns a rate for both of its steps; other storages have none."""
    monkeypatch.chdir(tmp_path)
    url = server_url(kind, request)

    for name in ("put, 1", "put, 100", "take, 10", "take, 100"):
        assert (await yardsticks.measure(kind, url, name, 200) or 0) > 0
    assert await yardsticks.measure("elsewhere", url, "put, 100", 200) is None


async def test_round_trips_are_timed_one_by_one() -> None:
    """Each enqueue comes back with its result, and the storage stays open for whoever lent it."""
    async with open_storage("memory:") as storage:
        took = await round_trips(storage, 5)

        assert len(took) == 5
        assert all(ms > 0 for ms in took)
        assert (await storage.counts(["round-trip"]))["round-trip"].active == 0


async def test_the_table_holds_every_scenario_with_its_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row's ratio is to the yardstick of its own round."""
    monkeypatch.chdir(tmp_path)
    rates = {
        "memory:": {s.name: [10.0, 30.0] for s in SCENARIOS}
        | {f"bare: {s.name}": [100.0, 100.0] for s in SCENARIOS}
    }

    found = command.rows(rates)

    assert [s.name for s in SCENARIOS] == [row["scenario"] for row in found]
    assert [0.2] * len(SCENARIOS) == [row["ratio"] for row in found]


def test_round_trips_are_told_by_their_middle_and_their_slowest() -> None:
    """p50 is the median of all rounds, p99 what one in a hundred exceeds."""
    (row,) = command.waits({"memory:": {command.ROUND_TRIP: [float(n) for n in range(1, 1000)]}})

    assert (row["storage"], row["p50_ms"], row["p99_ms"]) == ("memory", 500, 990)


async def test_a_measured_place_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left where files were measured."""
    monkeypatch.chdir(tmp_path)

    async with empty_place("file:PLACE") as storage:
        await fill(storage, "q", requests(1))

    assert list(tmp_path.iterdir()) == []


async def test_what_a_job_allocates_is_counted_by_verb() -> None:
    """In memory a waiting job is blocks that stay; nothing grows from one exchange to the next but these."""
    async with open_storage("memory:") as storage:
        rows = await allocations(storage)

    assert ["enqueue", "claim", "settle"] == [row["verb"] for row in rows]
    assert 10 > rows[0]["blocks_held"] > 1
    assert all(row["peak_bytes"] > 0 for row in rows)
