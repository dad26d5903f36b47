"""The race: dibs takes its turns by the peers' own rules, and a peer that cannot run says why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.peers import table
from benchmarks.peers.__main__ import chosen
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.grounds import Cost, InMemory, OnFiles, OnPostgres, OnRedis
from benchmarks.peers.homes import PROGRAMS, Home, NotRun
from benchmarks.peers.race import Turn, take

from dibs_conformance.servers import PostgresServer, RedisServer, start_redis


def ours(kind: str) -> Peer:
    return next(peer for peer in PEERS if peer.kind == kind and peer.runtime == "ours")


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """The race flushes its server: it must be one of its own."""
    with start_redis() as server:
        yield server


def test_dibs_takes_its_turn_on_redis(own_redis: RedisServer, tmp_path: Path) -> None:
    """Every step is measured, and the server says what a job cost it."""
    peer = ours("redis")

    turn = take(peer, Home(tmp_path, peer), OnRedis(own_redis.url), jobs=300, calls=20)

    assert turn.enqueue
    assert turn.drain
    assert turn.server
    # Batches: had each job its own calls, there were at least two.
    assert 0 < turn.server.commands < 2
    assert turn.pickup_ms
    assert 0 < turn.pickup_ms[0] <= turn.pickup_ms[1]


def test_dibs_takes_its_turn_on_postgres(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Each turn has a database of its own."""
    peer = ours("postgresql")
    ground = OnPostgres(postgres_server.url)

    turn = take(peer, Home(tmp_path, peer), ground, jobs=300, calls=20)

    assert turn.drain
    assert turn.pickup_ms
    assert turn.server is None


def test_dibs_takes_its_turn_on_files_and_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory nothing is enqueued from elsewhere, so only the drain is measured."""
    monkeypatch.chdir(tmp_path)
    files = OnFiles()
    in_files = take(ours("file"), Home(tmp_path, ours("file")), files, jobs=300, calls=20)
    files.close()
    in_memory = take(ours("memory"), Home(tmp_path, ours("memory")), InMemory(), jobs=300, calls=20)

    assert in_files.enqueue
    assert in_files.pickup_ms
    assert (in_memory.enqueue, in_memory.pickup_ms) == (None, None)
    assert in_memory.drain
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_fails_is_out_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that cannot be run is not a slow one."""
    monkeypatch.chdir(tmp_path)
    peer = Peer(name="dibs", kind="file", program="rq_peer.py", jobs=10)

    with pytest.raises(NotRun, match=r"put failed: .*Error"):
        take(peer, Home(tmp_path, peer), InMemory(), jobs=10, calls=1)


def test_a_runtime_that_is_missing_is_a_reason_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not stop the race."""
    peer = next(peer for peer in PEERS if peer.runtime == "node")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(NotRun, match="needs Node 20 or newer; found none"):
        Home(tmp_path, peer).make()


def test_every_peer_has_its_program_and_its_pins() -> None:
    """What is measured can be measured again: the system's own version is pinned."""
    for peer in PEERS:
        assert (PROGRAMS / peer.program).is_file(), peer.name
        if peer.needs:
            assert "==" in peer.needs[0] or "@" in peer.needs[0].lstrip("@"), peer.name


def test_ratios_are_within_a_round() -> None:
    """The median of ratios, not the ratio of medians."""
    peer = ours("redis")
    who: tuple[str, str] = (peer.kind, peer.name)
    turns = {who: [Turn(drain=10.0), Turn(drain=90.0), Turn(drain=50.0)]}
    bare = [{"redis take + finish": value} for value in (10.0, 30.0, 100.0)]

    found = table.row(peer, turns, {}, bare)

    assert (found["drain"], found["drain_ratio"], found["enqueue_ratio"]) == (50.0, 1.0, None)


def test_what_a_server_spent_is_told_by_the_job() -> None:
    assert Cost(2_000, 30, 5_000).since(Cost(1_000, 10, 1_000), 10) == Cost(100, 2, 400)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(SystemExit, match="no peer called sidekiq; there are arq, bee-queue"):
        chosen(["sidekiq"])
