"""TLS with an authority of the test: connections are encrypted, and lead only to the right server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from dibs.errors import StorageUnavailable
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import open_url
from dibs_conformance.servers import RedisServer, ServerUnavailable, start_redis
from dibs_conformance.servers.processes import LOOPBACK, free_port
from tests.redis_cluster import RedisCluster, start_redis_cluster
from tests.storage.address import address_of


class Encrypted(NamedTuple):
    """A Redis that is reached by TLS on this port."""

    server: RedisServer
    port: int
    authority: Path

    def url(self, host: str = LOOPBACK, authority: Path | None = None) -> str:
        trusted = authority or self.authority
        return f"rediss://:{self.server.password}@{host}:{self.port}/0?ssl_ca_certs={trusted}"


@pytest.fixture(params=["in front of it", "by the server"])
async def encrypted(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[Encrypted]:
    """TLS that something else ends in front of the server, and TLS of the server's own where it has it."""
    authority = trustme.CA()
    known, proof = tmp_path / "authority.pem", authority.issue_cert(LOOPBACK)
    authority.cert_pem.write_to_path(known)
    if request.param == "in front of it":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        proof.configure_cert(context)
        async with address_of(redis_server.port, tls=context) as front:
            yield Encrypted(redis_server, front.port, known)
        return
    with await asyncio.to_thread(with_tls, proof, known, tmp_path) as server:
        yield Encrypted(server, int(server.options["tls-port"]), known)


def with_tls(proof: trustme.LeafCert, authority: Path, folder: Path) -> RedisServer:
    """Start a Redis that ends TLS by itself; many are built without."""
    proof.private_key_pem.write_to_path(folder / "key.pem")
    proof.cert_chain_pems[0].write_to_path(folder / "proof.pem")
    try:
        return start_redis(
            tls_port=str(free_port()),
            tls_cert_file=str(folder / "proof.pem"),
            tls_key_file=str(folder / "key.pem"),
            tls_ca_cert_file=str(authority),
            tls_auth_clients="no",
        )
    except ServerUnavailable as reason:
        pytest.skip(f"this Redis is built without TLS: {reason}")


async def test_a_job_goes_all_the_way_by_tls(encrypted: Encrypted, prefix: str) -> None:
    async with open_url(encrypted.url(), prefix=prefix) as storage:
        lease = (await storage.grant(["q"], 60_000, "worker")).lease
        waiting = asyncio.create_task(storage.wait(["q"], timeout=30))
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
        assert (await waiting).woken
        (job,) = (await storage.claim("q", lease, 10)).jobs
        assert job.run is not None
        await storage.settle("q", [Settlement(id="a", fence=job.run.fence, action=Complete(result=b"1"))])
        (slot,) = await storage.get("q", ["a"])

    assert slot.outcome is not None
    assert b"1" == slot.outcome.result
    assert encrypted.server.password not in storage.url


async def test_a_server_of_another_authority_is_not_trusted(encrypted: Encrypted, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)

    await refused(encrypted.url(authority=other), encrypted, "certificate verify failed")


async def test_a_proof_for_another_name_is_not_taken(encrypted: Encrypted) -> None:
    await refused(encrypted.url(host="localhost"), encrypted, "localhost")


async def refused(url: str, encrypted: Encrypted, why: str) -> None:
    with pytest.raises(StorageUnavailable, match=why) as caught:
        async with open_url(url):
            pass

    assert encrypted.server.password not in str(caught.value)


# -- clusters --------------------------------------------------------------------------------------------


@pytest.fixture(params=["in front of it", "by the nodes"])
async def encrypted_cluster(
    request: pytest.FixtureRequest, redis_cluster: RedisCluster, tmp_path: Path
) -> AsyncIterator[tuple[RedisCluster, str]]:
    """A cluster and its URL: behind a TLS proxy for each node, or with TLS of its own where it has it."""
    authority = trustme.CA()
    known, proof = tmp_path / "authority.pem", authority.issue_cert(LOOPBACK)
    authority.cert_pem.write_to_path(known)
    if request.param == "by the nodes":
        with await asyncio.to_thread(cluster_with_tls, proof, known, tmp_path) as cluster:
            yield cluster, f"{cluster.url_of_all.replace('redis', 'rediss', 1)}?ssl_ca_certs={known}"
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    proof.configure_cert(context)
    async with AsyncExitStack() as stack:
        fronts = [
            await stack.enter_async_context(address_of(node.port, tls=context))
            for node in redis_cluster.nodes
        ]
        pairs = zip(redis_cluster.nodes, fronts, strict=True)
        addresses = ",".join(f"{LOOPBACK}:{node.port}={LOOPBACK}:{front.port}" for node, front in pairs)
        seed = f"rediss+cluster://:{redis_cluster.password}@{LOOPBACK}:{fronts[1].port}"
        yield redis_cluster, f"{seed}?ssl_ca_certs={known}&address_map={addresses}"


def cluster_with_tls(proof: trustme.LeafCert, authority: Path, folder: Path) -> RedisCluster:
    """Start a cluster whose nodes use TLS for clients and for each other; many are built without."""
    proof.private_key_pem.write_to_path(folder / "key.pem")
    proof.cert_chain_pems[0].write_to_path(folder / "proof.pem")
    try:
        return start_redis_cluster(
            tls_cluster="yes",
            tls_replication="yes",
            tls_cert_file=str(folder / "proof.pem"),
            tls_key_file=str(folder / "key.pem"),
            tls_ca_cert_file=str(authority),
            tls_auth_clients="no",
        )
    except ServerUnavailable as reason:
        pytest.skip(f"this Redis is built without TLS: {reason}")


async def test_a_cluster_is_reached_by_tls_also_after_a_slot_moved(
    encrypted_cluster: tuple[RedisCluster, str], prefix: str
) -> None:
    cluster, url = encrypted_cluster
    async with open_url(url, prefix=prefix, poll=60) as storage:
        names = [f"q{number}" for number in range(6)]
        waiting = asyncio.create_task(storage.wait(["q0"], timeout=30))
        for name in names:
            await storage.enqueue(name, [EnqueueRequest(job=NewJob(id="a"))])
        assert (await waiting).woken
        slot = cluster.slot_of(f"{prefix}:{{q0}}:")
        target = next(node for node in cluster.nodes if node is not cluster.owner_of(slot))
        await asyncio.to_thread(cluster.move_slot, slot, target)
        await storage.enqueue("q0", [EnqueueRequest(job=NewJob(id="b"))])
        counts = await storage.counts(names)

    assert [2, 1, 1, 1, 1, 1] == [counts[name].waiting for name in names]
    assert storage.url.startswith("rediss+cluster://")
    assert cluster.password not in storage.url


async def test_a_cluster_of_another_authority_is_not_trusted(
    encrypted_cluster: tuple[RedisCluster, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = encrypted_cluster
    monkeypatch.setattr("dibs.storage.redis.network.cluster.CONNECT_PAUSES", (0.0,))
    trustme.CA().cert_pem.write_to_path(tmp_path / "authority.pem")

    with pytest.raises(StorageUnavailable, match="certificate verify failed"):
        async with open_url(url):
            pass
