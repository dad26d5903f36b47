"""The comparison with other queues: measurements of dibs, and reasons of peers that cannot run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from attrs import evolve
from benchmarks.peers.__main__ import Comparison, select_peers
from benchmarks.peers.backends import FileBackend, MemoryBackend, PostgresBackend, RedisBackend
from benchmarks.peers.environments import PROGRAMS, Environment, PeerUnavailable, Usage
from benchmarks.peers.measure import Effort, Run
from benchmarks.peers.results import Results
from benchmarks.peers.systems import PEERS, Peer

from dibs_conformance.servers import PostgresServer, RedisServer, start_postgres, start_redis

#: Hardly any job: the tests check that each figure is there, not its value.
FEW = Effort(jobs=0.0005, latency_jobs=20, single_ms=50, idle=0.1, kept_jobs=200)


def dibs_peer(kind: str, name: str = "dibs") -> Peer:
    return next(peer for peer in PEERS if peer.key == f"{kind}: {name}")


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of this test alone, because the backend flushes the whole server."""
    with start_redis() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A Postgres of this test alone, because the CPU time is that of all its processes."""
    with start_postgres() as server:
        yield server


def test_dibs_is_measured_on_redis(own_redis: RedisServer, tmp_path: Path) -> None:
    """Every step is measured, with the usage of the server, also with many queues."""
    peer = evolve(dibs_peer("redis"), queues=(3,))

    figures = Run(peer, Environment(tmp_path, peer), RedisBackend(own_redis.url), FEW).measure(first=True)

    assert "kept_bytes" not in figures
    for many in (figures, figures["queues_3"]):
        assert many["drain_seconds"] > 0
        # Calls are batched. With separate calls, each job would need at least two commands.
        assert 0 < many["drain_server"]["commands"] < 2
        assert 0 < many["pickup_ms"][0] <= many["pickup_ms"][1]
    assert figures["enqueue_seconds"] > 0
    assert figures["awaited"] > 0
    assert figures["blocking"] > 0
    assert 0 < figures["result_ms"][0] <= figures["result_ms"][1]


def test_dibs_is_measured_on_postgres(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Each measurement has a new database. CPU and WAL are known."""
    peer = dibs_peer("postgresql", "dibs, 1 h")
    with closing(PostgresBackend(own_postgres)) as backend:
        run = Run(peer, Environment(tmp_path, peer), backend, FEW)
        enqueue, drain, kept = run.enqueue(), run.drain(run.prepare(), 2_000), run.kept_bytes()

    assert enqueue["enqueue_server"]["wal_bytes"] > 100
    assert drain["drain_server"]["wal_bytes"] > 100
    assert drain["drain_server"]["cpu_us"] > 0
    assert drain["waiting_bytes"] > 50
    assert kept
    assert kept > 50


def test_dibs_is_measured_on_files_and_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory only the drain is measured, because no other process can enqueue jobs."""
    monkeypatch.chdir(tmp_path)
    files, folder = FileBackend(), tmp_path / "environments"
    on_files = Run(dibs_peer("file"), Environment(folder, dibs_peer("file")), files, FEW).measure(first=True)
    files.close()
    memory = dibs_peer("memory", "dibs, 1 h")
    in_memory = Run(memory, Environment(folder, memory), MemoryBackend(), FEW).measure(first=True)

    assert on_files["pickup_ms"]
    assert on_files["waiting_bytes"] > 0
    assert set(in_memory) == {"drain_jobs", "drain_seconds", "worker_us"}
    assert list(tmp_path.iterdir()) == []


def test_jobs_are_left_until_all_keys_of_all_queues_are_empty(own_redis: RedisServer) -> None:
    backend = RedisBackend(own_redis.url)
    expressions, queues = ("waiting:{queue}", "active:{queue}"), ["one", "two"]
    backend.reset()
    assert not backend.left(expressions, queues)

    backend._redis.lpush("waiting:two", "a job")
    assert backend.left(expressions, queues)

    backend._redis.delete("waiting:two")
    backend._redis.zadd("active:one", {"a job": 1})
    assert backend.left(expressions, queues)


def test_the_reason_of_a_failed_program_is_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    peer = evolve(dibs_peer("memory"), kind="redis", program="rq_peer.py")

    with pytest.raises(PeerUnavailable, match=r"prepare failed: .*Error"):
        Run(peer, Environment(tmp_path, peer), MemoryBackend(), FEW).measure(first=False)


def test_a_worker_that_ends_early_is_reported_with_its_error(tmp_path: Path) -> None:
    peer = evolve(dibs_peer("memory"), program="rq_peer.py")

    with pytest.raises(PeerUnavailable, match=r"the worker did not report first: .*Error"):
        Run(peer, Environment(tmp_path, peer), MemoryBackend(), FEW).measure(first=False)


def test_a_peer_without_its_runtime_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = next(peer for peer in PEERS if peer.runtime == "node")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(PeerUnavailable, match="needs Node 22 or newer, and npm; found none"):
        Environment(tmp_path, peer).install()


def test_a_run_continues_with_its_file(tmp_path: Path) -> None:
    """The run skips a measured system, and measures a failed system again."""
    file = tmp_path / "results.json"
    peer, failed = dibs_peer("memory"), evolve(dibs_peer("memory"), name="failed", program="rq_peer.py")
    results = Results(rounds=[{"baselines": {"a": 1.0}, "systems": {failed.key: {"not_run": "a reason"}}}])
    Comparison(results, file, {"memory": MemoryBackend()}, FEW).run([peer], 1)

    loaded = Results.load(file)
    again = Comparison(loaded, file, {"memory": MemoryBackend()}, FEW)

    assert loaded.rounds[0]["systems"][peer.key]["drain_seconds"] > 0
    assert not again.run_peer(0, peer)
    assert again.run_peer(0, failed)
    assert "did not report" in loaded.rounds[0]["systems"][failed.key]["not_run"]


def test_every_peer_has_a_program_and_pinned_requirements() -> None:
    """The version of each system is pinned, so that a measurement can be repeated."""
    for peer in PEERS:
        assert (PROGRAMS / peer.program).is_file(), peer.name
        if peer.requirements:
            assert "==" in peer.requirements[0] or "@" in peer.requirements[0].lstrip("@"), peer.name


def test_usage_is_divided_by_the_jobs() -> None:
    """A figure that the server does not report stays unknown."""
    used = Usage(2_000, commands=30, bytes=5_000).per_job(Usage(1_000, commands=10, bytes=1_000), 10)

    assert used == Usage(100, commands=2, bytes=400, wal_bytes=None)


def test_the_error_for_an_unknown_name_lists_the_systems() -> None:
    with pytest.raises(SystemExit, match="unknown system sidekiq; choose from arq, bee-queue"):
        select_peers(["sidekiq"])


def test_a_kind_selects_its_systems() -> None:
    assert {peer.name for peer in select_peers([], ["memory"])} == {"dibs", "dibs, 1 h", "huey"}
