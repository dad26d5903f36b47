"""The comparison with other queues: measurements of dibs, and reasons of peers that cannot run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.peers import table
from benchmarks.peers.__main__ import select_peers
from benchmarks.peers.backends import FileBackend, MemoryBackend, PostgresBackend, RedisBackend, ServerUsage
from benchmarks.peers.environments import PROGRAMS, Environment, PeerUnavailable
from benchmarks.peers.measure import Measurement, measure_peer
from benchmarks.peers.systems import PEERS, Peer

from dibs_conformance.servers import PostgresServer, RedisServer, start_redis


def dibs_peer(kind: str) -> Peer:
    return next(peer for peer in PEERS if peer.kind == kind and peer.runtime == "dibs")


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of this test alone, because the backend flushes the whole server."""
    with start_redis() as server:
        yield server


def test_dibs_is_measured_on_redis(own_redis: RedisServer, tmp_path: Path) -> None:
    """Every step is measured, with the usage of the server."""
    peer = dibs_peer("redis")

    result = measure_peer(
        peer, Environment(tmp_path, peer), RedisBackend(own_redis.url), jobs=300, latency_jobs=20
    )

    assert result.enqueue
    assert result.drain
    assert result.server
    # Calls are batched. With separate calls, each job would need at least two commands.
    assert 0 < result.server.commands < 2
    assert result.pickup_ms
    assert 0 < result.pickup_ms[0] <= result.pickup_ms[1]


def test_dibs_is_measured_on_postgres(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Each measurement has a new database."""
    peer = dibs_peer("postgresql")
    backend = PostgresBackend(postgres_server.url)

    result = measure_peer(peer, Environment(tmp_path, peer), backend, jobs=300, latency_jobs=20)

    assert result.drain
    assert result.pickup_ms
    assert result.server is None


def test_dibs_is_measured_on_files_and_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory only the drain is measured, because no other process can enqueue jobs."""
    monkeypatch.chdir(tmp_path)
    files = FileBackend()
    in_files = measure_peer(
        dibs_peer("file"), Environment(tmp_path, dibs_peer("file")), files, jobs=300, latency_jobs=20
    )
    files.close()
    in_memory = measure_peer(
        dibs_peer("memory"),
        Environment(tmp_path, dibs_peer("memory")),
        MemoryBackend(),
        jobs=300,
        latency_jobs=20,
    )

    assert in_files.enqueue
    assert in_files.pickup_ms
    assert (in_memory.enqueue, in_memory.pickup_ms) == (None, None)
    assert in_memory.drain
    assert list(tmp_path.iterdir()) == []


def test_the_reason_of_a_failed_program_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    peer = Peer(name="dibs", kind="file", program="rq_peer.py", jobs=10)

    with pytest.raises(PeerUnavailable, match=r"enqueue failed: .*Error"):
        measure_peer(peer, Environment(tmp_path, peer), MemoryBackend(), jobs=10, latency_jobs=1)


def test_a_peer_without_its_runtime_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = next(peer for peer in PEERS if peer.runtime == "node")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(PeerUnavailable, match="needs Node 20 or newer; found none"):
        Environment(tmp_path, peer).install()


def test_every_peer_has_a_program_and_pinned_requirements() -> None:
    """The version of each system is pinned, so that a measurement can be repeated."""
    for peer in PEERS:
        assert (PROGRAMS / peer.program).is_file(), peer.name
        if peer.requirements:
            assert "==" in peer.requirements[0] or "@" in peer.requirements[0].lstrip("@"), peer.name


def test_a_ratio_is_the_median_of_the_ratios_within_each_round() -> None:
    peer = dibs_peer("redis")
    results = [Measurement(drain=10.0), Measurement(drain=90.0), Measurement(drain=50.0)]
    baselines = [{"redis take + finish": value} for value in (10.0, 30.0, 100.0)]

    row = table.row(peer, results, "", baselines)

    assert (row["drain"], row["drain_ratio"], row["enqueue_ratio"]) == (50.0, 1.0, None)


def test_server_usage_is_divided_by_the_jobs() -> None:
    assert ServerUsage(2_000, 30, 5_000).per_job(ServerUsage(1_000, 10, 1_000), 10) == ServerUsage(
        100, 2, 400
    )


def test_the_error_for_an_unknown_name_lists_the_systems() -> None:
    with pytest.raises(SystemExit, match="unknown system sidekiq; choose from arq, bee-queue"):
        select_peers(["sidekiq"])
