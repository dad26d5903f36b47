"""For pytest: real servers as fixtures, one of each per run (with xdist: per worker process).

What cannot be started is skipped with the reason, or fails when DIBS_TEST_SERVERS=required.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from dibs_conformance.servers import (
    Missing,
    PostgresServer,
    RedisCluster,
    RedisServer,
    find_postgres,
    find_redis,
    start_postgres,
    start_redis,
    start_redis_cluster,
)
from dibs_conformance.servers.binaries import Found

T = TypeVar("T")


def pytest_report_header() -> str | None:
    told = [_told("Redis", find_redis), _told("Postgres", find_postgres)]
    return f"dibs servers: {', '.join(told)}"


def _told(name: str, find: Callable[[], Found]) -> str:
    try:
        found = find()
    except Missing:
        return f"no {name}"
    return f"{name} {found.version} ({found.origin})"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A private Redis; nothing else uses it."""
    with _or_skip(start_redis) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """A private Redis Cluster of three nodes."""
    with _or_skip(start_redis_cluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A private Postgres with one superuser."""
    with _or_skip(start_postgres) as server:
        yield server


def _or_skip(start: Callable[[], T]) -> T:
    try:
        return start()
    except Missing as reason:
        if os.environ.get("DIBS_TEST_SERVERS") == "required":
            pytest.fail(f"DIBS_TEST_SERVERS=required, and {reason}", pytrace=False)
        pytest.skip(str(reason))
