"""Redis, as a server, by its Unix socket and as a cluster, and Valkey keep the contract.

A server has 20 examples by default and each other 8; each has 1,000 with the marker `certify`.
"""

from __future__ import annotations

import pytest

from dibs_conformance.certification import certify
from dibs_conformance.servers import RedisCluster, RedisServer
from tests.kit.redis_locations import RedisLocations

BUDGET = 600.0


def test_redis_keeps_the_contract(redis_server: RedisServer) -> None:
    report = certify(RedisLocations(redis_server.url), examples=20, budget=BUDGET, seed=1)

    assert report.certified, report.text()


def test_redis_cluster_keeps_the_contract(redis_cluster: RedisCluster) -> None:
    report = certify(RedisLocations(redis_cluster.url), examples=8, budget=BUDGET, seed=2)

    assert report.certified, report.text()


def test_redis_keeps_the_contract_by_its_unix_socket(redis_server: RedisServer) -> None:
    report = certify(RedisLocations(redis_server.socket_url), examples=8, budget=BUDGET, seed=3)

    assert report.certified, report.text()


def test_valkey_keeps_the_contract(valkey_server: RedisServer) -> None:
    report = certify(RedisLocations(valkey_server.url), examples=8, budget=BUDGET, seed=4)

    assert report.certified, report.text()


@pytest.mark.certify
def test_redis_keeps_the_contract_for_long(redis_server: RedisServer) -> None:
    report = certify(RedisLocations(redis_server.url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()


@pytest.mark.certify
def test_redis_cluster_keeps_the_contract_for_long(redis_cluster: RedisCluster) -> None:
    report = certify(RedisLocations(redis_cluster.url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()


@pytest.mark.certify
def test_valkey_keeps_the_contract_for_long(valkey_server: RedisServer) -> None:
    report = certify(RedisLocations(valkey_server.url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()
