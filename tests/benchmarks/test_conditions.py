"""The measurements under other conditions: network delay, backlog, cold start, stored jobs."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from benchmarks.conditions import backlog, cold_start, footprint
from benchmarks.conditions.__main__ import main
from benchmarks.conditions.network_delay import DelayedBackend, delayed_url, dibs_peer
from benchmarks.peers.backends import RedisBackend
from redis import Redis

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
