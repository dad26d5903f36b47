"""A pytest plugin with fixtures for real Redis and Postgres servers.

A fixture starts one server per test run, or per worker process of pytest-xdist.

A test that needs a server which cannot be started is skipped with the reason, or fails with
DIBS_TEST_SERVERS=required. The option --dibs-storage adds the tests of `pytest_items`, which need the extra
`conformance`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from dibs_conformance.servers import (
    PostgresServer,
    RedisServer,
    ServerUnavailable,
    find_postgres,
    find_redis,
    find_valkey,
    start_postgres,
    start_redis,
    start_valkey,
)
from dibs_conformance.servers.processes import ServerBinary

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dibs", "dibs: test a storage against the contract")
    add = group.addoption
    add("--dibs-storage", metavar="TARGET", help="The storage to test: module:open_storage or a URL.")
    add("--dibs-level", default="L0", help="Highest level to test, L0 to L4. Default: L0.")
    add("--dibs-budget", type=float, default=60.0, help="Seconds to spend on all levels. Default: 60.")
    add("--dibs-examples", type=int, help="Histories to test on each level, instead of a budget.")
    add("--dibs-seed", type=int, help="Seed of an earlier run, to repeat it.")
    add("--dibs-html", metavar="FILE", help="Write the report as HTML to FILE.")
    add("--dibs-badge", metavar="FILE", help="Write an SVG badge to FILE.")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("dibs_storage"):
        return
    try:
        from dibs_conformance.pytest_items import create_plugin  # noqa: PLC0415 - needs the extra
    except ImportError as error:
        raise pytest.UsageError(
            f"--dibs-storage needs {error.name}, which is not installed. Run pip install 'dibs[conformance]'"
        ) from None
    config.pluginmanager.register(create_plugin(config), "dibs-storage")


def pytest_report_header() -> str | None:
    found = {"Redis": find_redis, "Valkey": find_valkey, "Postgres": find_postgres}
    servers = [_describe(name, find) for name, find in found.items()]
    return f"dibs servers: {', '.join(servers)}"


def _describe(name: str, find: Callable[[], ServerBinary]) -> str:
    try:
        found = find()
    except ServerUnavailable:
        return f"no {name}"
    return f"{name} {found.version} ({found.origin})"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """Yield a Redis without persistence, whose port and password only this test run knows."""
    with start_or_skip(start_redis) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[RedisServer]:
    """Yield a Valkey without persistence, whose port and password only this test run knows."""
    with start_or_skip(start_valkey) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Yield a Postgres with fsync off and the superuser `dibs`."""
    with start_or_skip(start_postgres) as server:
        yield server


def start_or_skip(start: Callable[[], T]) -> T:
    """Return a started server. Skip or fail the test with the reason if it cannot be started."""
    try:
        return start()
    except ServerUnavailable as reason:
        if os.environ.get("DIBS_TEST_SERVERS") == "required":
            pytest.fail(f"DIBS_TEST_SERVERS=required: {reason}", pytrace=False)
        pytest.skip(str(reason))
