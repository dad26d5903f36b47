"""The conditions are what they say: further away is later, a line is as long as asked, room is taken."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.conditions import long_line, room, start_up
from benchmarks.conditions.__main__ import main
from benchmarks.conditions.far import Behind, ours
from benchmarks.conditions.proxy import further
from benchmarks.peers.grounds import OnRedis
from redis import Redis

from dibs_conformance.servers import RedisServer, start_redis


def test_a_server_further_away_answers_the_same_and_later(redis_server: RedisServer) -> None:
    """The proxy holds each request back for as long as it says; the URL keeps its password and its query."""
    with further(f"{redis_server.url}?socket_timeout=30", 20) as url, Redis.from_url(url) as client:
        assert url.endswith("?socket_timeout=30")
        client.ping()
        begun = time.monotonic()
        assert client.echo("x" * 100_000) == b"x" * 100_000
        assert time.monotonic() - begun >= 0.02


def test_a_proxy_ends_with_its_block(redis_server: RedisServer) -> None:
    with further(redis_server.url, 0) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_far_empties_the_ground_behind_the_proxy() -> None:
    """Each turn begins on an empty server, whatever the distance."""
    with start_redis() as server, ExitStack() as stack:
        ground = OnRedis(server.url)
        far = Behind(ground, 1, stack)
        with Redis.from_url(far.empty()) as client:
            client.set("left", "over")
        with Redis.from_url(far.empty()) as client:
            assert client.dbsize() == 0
        assert far.cost()
    assert ours("redis").runtime == "ours"


@pytest.mark.parametrize("url", ["memory:", "file:PLACE"])
async def test_a_line_is_held_at_its_length(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row for each length, and one more with the longest scheduled."""
    monkeypatch.chdir(tmp_path)

    rows = await long_line.measure([url], [200, 400], seconds=0.05, told=lambda _: None)

    assert [(row["waiting"], row["scheduled"]) for row in rows] == [(200, 0), (400, 0), (200, 400)]
    assert all(row["per_second"] > 0 for row in rows)


def test_a_worker_starts_and_says_when_its_first_job_ran() -> None:
    assert start_up.measure(1)["first_claim_ms"] > 0


async def test_room_is_not_measured_where_others_are(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PATIENCE", 0.1)
    with Redis.from_url(redis_server.url) as other:
        other.ping()
        with pytest.raises(TimeoutError, match="measure room on a server that nobody else uses"):
            await room.on_redis(f"{redis_server.url}?prefix=PLACE")


async def test_files_take_room() -> None:
    assert 0 < await room.on_files() < 100


def test_an_unknown_part_lists_the_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["conditions", "near"])
    with pytest.raises(SystemExit):
        main()
    assert "no part called near; there are far, line, start, room" in capsys.readouterr().err
