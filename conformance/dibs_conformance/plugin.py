"""For pytest: real servers as fixtures, one of each per run (with xdist: per worker process).

What cannot be started is skipped with the reason, or fails when DIBS_TEST_SERVERS=required. With
--dibs-storage the kit itself is a row of tests (storage_items.py), which needs the extra `conformance`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from dibs_conformance.servers import (
    PostgresServer,
    RedisCluster,
    RedisServer,
    ServerUnavailable,
    find_postgres,
    find_redis,
    start_postgres,
    start_redis,
    start_redis_cluster,
)
from dibs_conformance.servers.binaries import Found

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dibs", "dibs: hold a storage against the contract")
    add = group.addoption
    add("--dibs-storage", metavar="TARGET", help="module:open_storage, or the URL of a storage.")
    add("--dibs-level", default="L0", help="How deep: L0 to L4. Default: L0.")
    add("--dibs-budget", type=float, default=60.0, help="Seconds for all levels. Default: 60.")
    add("--dibs-examples", type=int, help="Histories on each level, in place of the budget.")
    add("--dibs-seed", type=int, help="Repeat the run with this seed.")
    add("--dibs-html", metavar="FILE", help="Write the report as a page of HTML.")
    add("--dibs-badge", metavar="FILE", help="Write a badge, an SVG.")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("dibs_storage"):
        return
    try:
        from dibs_conformance.pytest_items import under_test  # noqa: PLC0415 - only who asks needs it
    except ImportError as error:
        raise pytest.UsageError(
            f"--dibs-storage needs {error.name}, which is not installed: pip install 'dibs[conformance]'"
        ) from None
    config.pluginmanager.register(under_test(config), "dibs-storage")


def pytest_report_header() -> str | None:
    told = [_told("Redis", find_redis), _told("Postgres", find_postgres)]
    return f"dibs servers: {', '.join(told)}"


def _told(name: str, find: Callable[[], Found]) -> str:
    try:
        found = find()
    except ServerUnavailable:
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
    except ServerUnavailable as reason:
        if os.environ.get("DIBS_TEST_SERVERS") == "required":
            pytest.fail(f"DIBS_TEST_SERVERS=required, and {reason}", pytrace=False)
        pytest.skip(str(reason))
