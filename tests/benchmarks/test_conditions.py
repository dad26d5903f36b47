"""The measurements under other conditions: network delay, backlog, cold start, stored jobs."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import baselines
from benchmarks.allocations import measure_allocations
from benchmarks.client_calls import round_trips
from benchmarks.conditions import backlog, cold_start, footprint
from benchmarks.conditions.__main__ import main
from benchmarks.conditions.network_delay import DelayedBackend, delayed_url, dibs_peer
from benchmarks.fleet.measure import Sample, rates
from benchmarks.peers.backends import RedisBackend
from benchmarks.peers.publish.rows import rows
from benchmarks.peers.results import Results
from benchmarks.peers.systems import PEERS
from benchmarks.plots import charts, save
from benchmarks.scenarios import SCENARIOS, Scenario, fill, requests
from benchmarks.storages import empty_storage
from redis import Redis

from dibs.storage.registry import open_storage
from dibs_conformance.servers import RedisServer, start_redis


def test_the_proxy_delays_replies_and_keeps_their_content(redis_server: RedisServer) -> None:
    """The proxy delays each request by the given time. The URL keeps its password and its query."""
    with delayed_url(f"{redis_server.url}?socket_timeout=30", 20) as url, Redis.from_url(url) as client:
        assert url.endswith("?socket_timeout=30")
        client.ping()
        started = time.monotonic()
        assert client.echo("x" * 100_000) == b"x" * 100_000
        assert time.monotonic() - started >= 0.02


def test_the_proxy_stops_at_the_end_of_the_block(redis_server: RedisServer) -> None:
    with delayed_url(redis_server.url, 0) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_delayed_backend_is_emptied() -> None:
    """Each measurement begins on an empty server."""
    with start_redis() as server, ExitStack() as stack:
        delayed = DelayedBackend(RedisBackend(server.url), 1, stack)
        with Redis.from_url(delayed.reset()) as client:
            client.set("left", "over")
        with Redis.from_url(delayed.reset()) as client:
            assert client.dbsize() == 0
        assert delayed.usage()
    assert dibs_peer("redis").runtime == "dibs"


@pytest.mark.parametrize("url", ["memory:", "file:NAME"])
async def test_the_rate_is_measured_for_each_backlog(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is a row for each length, and one with the longest backlog scheduled for later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backlog, "PAUSE", 0)

    rows = await backlog.measure([url], [200, 400], seconds=0.05, show_step=lambda _: None)

    assert [(row["waiting"], row["scheduled"]) for row in rows] == [(200, 0), (400, 0), (200, 400)]
    assert all(row["per_second"] > 0 for row in rows)


def test_the_time_until_the_first_job_is_measured() -> None:
    assert cold_start.measure(1)["first_claim_ms"] > 0


async def test_redis_with_other_clients_is_not_measured(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "CLOSE_TIMEOUT", 0.1)
    with Redis.from_url(redis_server.url) as other:
        other.ping()
        with pytest.raises(TimeoutError, match="measure on a server without other clients"):
            await footprint.redis_mib(f"{redis_server.url}?prefix=NAME")


async def test_the_size_of_files_is_measured() -> None:
    assert 0 < await footprint.file_mib() < 100


def test_the_error_for_an_unknown_part_lists_the_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["conditions", "near"])
    with pytest.raises(SystemExit):
        main()
    assert "unknown part near; choose from far, line, start, room" in capsys.readouterr().err


# -- The samples that the rates of worker processes are computed from --------------------------------


def test_the_time_after_the_last_completed_job_does_not_count() -> None:
    samples = [Sample(0.0, 0, 1.0), Sample(1.0, 100, 1.5), Sample(2.0, 200, 2.0), Sample(2.2, 210, 2.1)]

    assert (100.0, 0.005) == rates([*samples, Sample(30.0, 210, 9.0)])


def test_without_a_sample_in_between_the_first_sample_with_the_final_count_is_used() -> None:
    assert (500.0, 0.01) == rates([Sample(0.0, 0, 0.0), Sample(0.2, 100, 1.0), Sample(9.0, 100, 4.0)])


def test_a_single_sample_has_no_rate() -> None:
    with pytest.raises(ValueError, match="measure more jobs"):
        rates([Sample(0.0, 100, 1.0)])


# -- The charts of the measured figures --------------------------------------------------------------


FIGURES = {
    "drain_jobs": 100, "drain_seconds": 100 / 4321.0, "worker_us": 10.0,
    "enqueue_jobs": 4, "enqueue_seconds": 10.0,
    "drain_server": {"cpu_us": 5.0},
}  # fmt: skip
SYSTEMS = {peer.key: FIGURES for peer in PEERS if peer.name in ("dibs", "dibs, 1 h")}
NO_BULLMQ = {"redis: bullmq": {"not_run": "needs Node"}}


def test_each_chart_shows_its_figures(tmp_path: Path) -> None:
    """A system without a measurement has no bar. The same data gives the same file."""
    measured = Results({}, [{"baselines": {}, "systems": SYSTEMS | NO_BULLMQ}])
    for folder in ("one", "two"):
        save(charts(rows(measured)), tmp_path / folder)

    drawn = {path.stem: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert set(drawn) == {"throughput-redis", "throughput-postgresql", "cpu"}
    assert "4,321" in drawn["throughput-redis"]
    assert "bullmq" not in drawn["throughput-redis"]
    assert drawn == {path.stem: path.read_text() for path in (tmp_path / "two").iterdir()}


# -- The scenarios, the baselines and the tables of the benchmarks -----------------------------------


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
