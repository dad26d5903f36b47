"""Clients and pools of redis-py that are handed over: their settings are used, their connections are not."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.sentinel
import trustme
from redis.credentials import UsernamePasswordCredentialProvider

from dibs import Dibs
from dibs.errors import ConfigurationError
from dibs.storage.redis.network.client_settings import read_client
from dibs_conformance.servers import RedisServer
from dibs_conformance.servers.processes import LOOPBACK, free_port, wait_until
from tests.redis_cluster import RedisCluster
from tests.storage.address import address_of

MAKERS: dict[str, Callable[[RedisServer], Any]] = {
    "a client": lambda server: redis.asyncio.Redis.from_url(server.url, decode_responses=True),
    "a blocking client": lambda server: redis.Redis.from_url(server.url),
    "a client of RESP3": lambda server: redis.asyncio.Redis.from_url(server.url, protocol=3),
    "a unix socket": lambda server: redis.asyncio.Redis(
        unix_socket_path=str(server.socket), password=server.password
    ),
    "a blocking unix socket": lambda server: redis.Redis.from_url(server.socket_url),
    "another database": lambda server: redis.asyncio.Redis.from_url(server.url.removesuffix("/0") + "/3"),
    "a credential provider": lambda server: redis.asyncio.Redis(
        port=server.port, credential_provider=UsernamePasswordCredentialProvider(password=server.password)
    ),
    "a pool": lambda server: redis.asyncio.ConnectionPool.from_url(server.url, max_connections=1),
    "a blocking pool": lambda server: redis.BlockingConnectionPool.from_url(server.url),
}


async def double(number: int) -> int:
    return 2 * number


def app_of(client: Any, prefix: str) -> Dibs:
    return (Dibs.from_redis if hasattr(client, "connection_pool") else Dibs.from_pool)(client, prefix=prefix)


@pytest.mark.parametrize("kind", MAKERS)
async def test_jobs_go_all_the_way_with_the_settings_of(
    kind: str, redis_server: RedisServer, prefix: str
) -> None:
    client = MAKERS[kind](redis_server)
    app = app_of(client, prefix)
    task = app.task(queue="double")(double)
    async with app:
        ticket = await task.enqueue(21)
        await app.work(until="empty")

        assert 42 == await ticket.result(5)
    assert redis_server.password not in f"{app!r} {app._storage_handle!r} {read_client(client)!r}"


async def test_the_client_stays_open_and_its_connections_are_its_own(
    redis_server: RedisServer, prefix: str
) -> None:
    async with redis.asyncio.Redis.from_url(redis_server.url, client_name="mine") as client:
        async with app_of(client, prefix) as app:
            await client.ping()
            in_pool = [*client.connection_pool._available_connections]
            await app.queue("q").enqueue("data")
            names = [one["name"] for one in await client.client_list()]
        assert in_pool == client.connection_pool._available_connections

        assert await client.ping()
        assert 2 <= names.count("mine")


async def test_a_client_of_another_database_has_the_jobs_there(
    redis_server: RedisServer, prefix: str
) -> None:
    async with app_of(MAKERS["another database"](redis_server), prefix) as app:
        await app.queue("q").enqueue("data")

    async with MAKERS["another database"](redis_server) as client:
        assert await client.exists(f"{prefix}:{{q}}:waiting")


async def test_a_client_with_tls_gives_its_authority(
    redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    async with address_of(redis_server.port, tls=context) as front:
        for kind in (redis.asyncio.Redis, redis.Redis):
            client = kind(
                host=LOOPBACK,
                port=front.port,
                password=redis_server.password,
                ssl=True,
                ssl_ca_certs=str(tmp_path / "authority.pem"),
            )
            async with app_of(client, prefix) as app:
                await app.queue("q").enqueue("data")

                assert app.storage.url == f"rediss://{LOOPBACK}:{front.port}/0"


@pytest.mark.parametrize("module", [redis.asyncio, redis])
async def test_a_client_of_a_cluster_gives_seeds_and_address_map(
    module: Any, redis_cluster: RedisCluster, prefix: str
) -> None:
    remapped: set[tuple[str, int]] = set()

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        remapped.add(address)
        return "localhost", address[1]

    client = await asyncio.to_thread(
        lambda: module.RedisCluster(
            host=LOOPBACK,
            port=redis_cluster.nodes[0].port,
            password=redis_cluster.password,
            address_remap=remap,
        )
    )
    remapped.clear()
    async with Dibs.from_redis(client, prefix=prefix) as app:
        for name in "abcdef":
            await app.queue(name).enqueue("data")

        assert {(LOOPBACK, node.port) for node in redis_cluster.nodes} == remapped
        assert app.storage.url.startswith("redis+cluster://")
    if module is redis:
        client.close()


def test_worker_processes_get_the_settings_too(
    redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, os, redis.asyncio\n"
        "from dibs import Dibs\n"
        "client = redis.asyncio.Redis(port=int(os.environ['PORT']), password=os.environ['SECRET'])\n"
        "app = Dibs.from_redis(client, prefix=os.environ['PREFIX'])\n"
        "@app.task\n"
        "def pid() -> int:\n"
        "    return os.getpid()\n"
        "async def main() -> None:\n"
        "    async with app:\n"
        "        ticket = await pid.enqueue()\n"
        "        await app.work(processes=1, until='empty')\n"
        "        print(await ticket.result(5) != os.getpid())\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    given = {"PORT": str(redis_server.port), "SECRET": redis_server.password, "PREFIX": prefix}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **given},
    )  # fmt: skip

    assert "True" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (object(), "class object"),
        ("redis://localhost", "class str"),
        (redis.Redis.from_url, "class method"),
        (redis.asyncio.connection.Connection(), "a Connection is not"),
        (redis.sentinel.Sentinel([("localhost", 1)]).master_for("main"), "redis.asyncio.sentinel"),  # type: ignore[no-untyped-call]
        (redis.Redis(redis_connect_func=print), "redis_connect_func"),
        (redis.Redis(ssl=True, ssl_validate_ocsp=True), "ssl_validate_ocsp"),
    ],
    ids=["object", "url", "method", "connection", "blocking sentinel", "connect function", "ocsp"],
)
def test_other_objects_and_settings_are_refused(client: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Dibs.from_redis(client)


def test_a_pool_of_another_package_is_no_redis() -> None:
    psycopg_pool = pytest.importorskip("psycopg_pool")

    with pytest.raises(ConfigurationError, match="a client of redis"):
        Dibs.from_redis(psycopg_pool.ConnectionPool(open=False))


@pytest.fixture
def sentinel_port(redis_server: RedisServer, tmp_path: Path) -> Iterator[int]:
    """The port of a Sentinel that watches the Redis server under the name `main`."""
    port, config = free_port(), tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {LOOPBACK}\nsentinel monitor main {LOOPBACK} {redis_server.port} 1\n"
        f"sentinel auth-pass main {redis_server.password}\n"
    )
    command = [str(redis_server.found.path), str(config), "--sentinel"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: accepts(port), 10)
            yield port
        finally:
            process.kill()


async def test_a_client_by_sentinel_finds_the_primary(
    redis_server: RedisServer, sentinel_port: int, prefix: str
) -> None:
    finder = redis.asyncio.sentinel.Sentinel([(LOOPBACK, sentinel_port)])  # type: ignore[no-untyped-call]
    client = finder.master_for("main", password=redis_server.password)
    async with Dibs.from_redis(client, prefix=prefix) as app:
        await app.queue("q").enqueue("data")
        shown = app.storage.url
    for one in (client, *finder.sentinels):
        await one.aclose()

    assert "redis://main" == shown
    assert redis_server.execute("EXISTS", f"{prefix}:{{q}}:waiting")


def accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
