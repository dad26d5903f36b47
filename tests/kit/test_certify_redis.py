"""Redis, as a server, by its Unix socket and as a cluster, and Valkey keep the contract.

The cluster and Valkey have 8 examples by default; with the marker `certify` each has 1,000. Redis as a server
has its examples in test_certify_levels.py by default.
"""

from __future__ import annotations

import pytest

from dibs_conformance.certification import certify
from dibs_conformance.servers import RedisCluster, RedisServer
from tests.kit.redis_locations import RedisLocations

BUDGET = 600.0


def test_redis_cluster_keeps_the_contract(redis_cluster: RedisCluster) -> None:
    report = certify(RedisLocations(redis_cluster.url), examples=8, budget=BUDGET, seed=2)

    assert report.certified, report.text()


def test_valkey_keeps_the_contract(valkey_server: RedisServer) -> None:
    report = certify(RedisLocations(valkey_server.url), examples=8, budget=BUDGET, seed=4)

    assert report.certified, report.text()


@pytest.mark.certify
def test_redis_keeps_the_contract_for_long(redis_server: RedisServer) -> None:
    report = certify(RedisLocations(redis_server.url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()


@pytest.mark.certify
def test_redis_keeps_the_contract_by_its_unix_socket_for_long(redis_server: RedisServer) -> None:
    report = certify(RedisLocations(redis_server.socket_url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()


@pytest.mark.certify
def test_redis_cluster_keeps_the_contract_for_long(redis_cluster: RedisCluster) -> None:
    report = certify(RedisLocations(redis_cluster.url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()


@pytest.mark.certify
def test_valkey_keeps_the_contract_for_long(valkey_server: RedisServer) -> None:
    report = certify(RedisLocations(valkey_server.url), examples=1000, budget=BUDGET)

    assert report.certified, report.text()
