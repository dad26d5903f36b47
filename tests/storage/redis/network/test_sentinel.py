"""A URL of Redis Sentinel: the primary is found, also after a failover, and bad URLs are refused."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.errors import StorageUnavailable, UnknownOption
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from dibs.storage.redis.network.sentinel import SentinelAddress
from dibs_conformance.servers import RedisServer, start_redis
from dibs_conformance.servers.processes import LOOPBACK, free_port, wait_until
from tests.storage.address import again

Pair = tuple[RedisServer, RedisServer]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and its replica, with the same password."""
    with start_redis() as primary, start_redis() as replica:
        for server in (primary, replica):
            server.execute("CONFIG", "SET", "masterauth", primary.password)
        replica.execute("CONFIG", "SET", "requirepass", primary.password)
        replica.password = primary.password
        replica.execute("REPLICAOF", LOOPBACK, str(primary.port))
        assert wait_until(lambda: "master_link_status:up" in replica.execute("INFO", "replication"), 30)
        yield primary, replica


@pytest.fixture
def port(pair: Pair, tmp_path: Path) -> Iterator[int]:
    """The port of a Sentinel with a password that watches the pair under the name `main`."""
    primary, _ = pair
    port, config = free_port(), tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {LOOPBACK}\nrequirepass guard\n"
        f"sentinel monitor main {LOOPBACK} {primary.port} 1\n"
        f"sentinel auth-pass main {primary.password}\n"
        "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
    )
    command = [str(primary.found.path), str(config), "--sentinel"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: is_watched(port, b"num-slaves\r\n$1\r\n1"), 30)
            yield port
        finally:
            process.kill()


def is_watched(port: int, wanted: bytes) -> bool:
    """Return whether the answer of the Sentinel about the service has these bytes."""
    answer = b""
    # A Sentinel has no QUIT, so the end of its answer is a pause.
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=0.3) as wire:
        wire.sendall(b"AUTH guard\r\nSENTINEL MASTER main\r\n")
        while wanted not in answer and (data := wire.recv(65_536)):
            answer += data
    return wanted in answer


def address(pair: Pair, port: int) -> str:
    """Return the URL by two Sentinels, the first of which does not answer."""
    hosts = f"{LOOPBACK}:{free_port()},{LOOPBACK}:{port}"
    return f"redis+sentinel://:{pair[0].password}@{hosts}/main/0?sentinel_password=guard"


@pytest.mark.long
async def test_an_app_goes_on_at_the_new_primary(pair: Pair, port: int) -> None:
    primary, replica = pair
    url = address(pair, port)
    async with Dibs(url) as app, open_url(url) as storage:
        queue = app.queue("q")
        await queue.enqueue(1)
        await asyncio.to_thread(app.sync.queue("q").enqueue, 2)
        assert 1 == primary.execute("WAIT", "1", "30000")
        primary.kill()
        await again(lambda: storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))]))
        await again(lambda: queue.enqueue(3, id="b"))
        shown = repr(app)

    assert 4 == replica.execute("HLEN", "dibs:{q}:waiting")
    assert shown.endswith(f",{LOOPBACK}:{port}/main/0>")
    assert primary.password not in shown
    assert "guard" not in shown


@pytest.mark.long
async def test_an_unknown_service_is_no_server(pair: Pair, port: int) -> None:
    url = address(pair, port).replace("/main/", "/other/")
    with pytest.raises(StorageUnavailable, match=r"No master found for 'other'; tried"):
        async with open_url(url):
            pass


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("redis+sentinel://a", "name of a service"),
        ("redis+sentinel://a/", "name of a service"),
        ("redis+sentinel://a/main/x", "number of a database"),
        ("redis+sentinel://a/main?oops=1", "unknown option 'oops'"),
        ("redis+sentinel://a/main?address_map=a=b", "only for clusters"),
    ],
)
async def test_a_bad_url_is_refused(url: str, fault: str) -> None:
    with pytest.raises(UnknownOption, match=fault):
        async with open_url(url):
            pass


def test_the_settings_of_a_url_are_those_of_servers_and_sentinels() -> None:
    found = SentinelAddress("rediss+sentinel://ada:pw@a,b:7/main/3?ssl_ca_certs=ca.pem&sentinel_username=eve")
    nodes = [node.connection_pool.connection_kwargs for node in found._sentinel.sentinels]

    assert [("a", 26379), ("b", 7)] == [(node["host"], node["port"]) for node in nodes]
    assert {("eve", "ca.pem")} == {(node["username"], node["ssl_ca_certs"]) for node in nodes}
    settings = found.settings.options
    assert ("ada", "pw", 3, "ca.pem") == tuple(
        settings[name] for name in ("username", "password", "db", "ssl_ca_certs")
    )
    assert "rediss://" == found.settings.url[:9]
