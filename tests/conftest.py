"""Fixtures that open apps and queues on empty storages.

`app` is on a storage in memory, `any_app` in memory and on a server. The conformance kit compares all
storages, so tests of the code above the storages need no more kinds.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from dibs import Dibs, Queue
from dibs.client.sync.background_loop import LoopCall
from dibs_conformance.plugin import start_or_skip
from tests.redis_cluster import RedisCluster, start_redis_cluster
from tests.storage_urls import new_url
from tests.suites import NEEDS, is_long, is_missing, needed

TESTS = Path(__file__).parent
#: Calls return at once in memory, and cross a network on Redis.
SCHEMES = ("memory", "redis")
ALL_SCHEMES = ("memory", "file", "redis", "postgresql")

# An example of Hypothesis may take any time, because the machine may be busy.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    """Also run the long tests of the paths of a command; plain `pytest` has none."""
    if hasattr(config, "workerinput"):
        config.option.markexpr = config.workerinput["markexpr"]
    elif config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        config.option.markexpr = config.option.markexpr.removeprefix("not long and ")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of xdist this expression, because the worker reads that of pyproject.toml again."""
    node.workerinput["markexpr"] = node.config.option.markexpr


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not collect files whose tests are all long, nor those whose packages are not installed."""
    if collection_path.is_dir() or TESTS not in collection_path.parents:
        return None
    path = collection_path.relative_to(TESTS).as_posix()
    left_out = config.option.markexpr.startswith("not long and ") and is_long(path)
    package = needed(path)
    return True if left_out or (package and is_missing(package)) else None


def pytest_report_header() -> list[str]:
    missing = [f"{path} ({package})" for path, package in NEEDS.items() if is_missing(package)]
    return [f"not collected, as a package is not installed: {', '.join(missing)}"] if missing else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long tests of the tables of tests/suites.py."""
    for item in items:
        if TESTS in item.path.parents:
            path = item.path.relative_to(TESTS).as_posix()
            if is_long(path, getattr(item, "originalname", item.name)):
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Yield a Redis Cluster of three primaries without replicas."""
    with start_or_skip(start_redis_cluster) as cluster:
        yield cluster


@pytest.fixture
def storage_url() -> str:
    """Return the URL of an empty storage."""
    return "memory:"


@pytest.fixture
async def app(storage_url: str) -> AsyncIterator[Dibs]:
    """An open app on an empty storage."""
    async with Dibs(storage_url) as app:
        yield app


@pytest.fixture
def queue(app: Dibs) -> Queue:
    return app.queue("q")


@pytest.fixture(autouse=True)
def restored_root_logger() -> Iterator[None]:
    """Restore the handlers and the level of the root logger after each test.

    A command that runs in this process adds a handler for the stderr of its test, which pytest closes.
    """
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(params=SCHEMES)
def any_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new storage, in memory and on a server."""
    return new_url(request.param, request)


@pytest.fixture
async def any_app(any_url: str) -> AsyncIterator[Dibs]:
    """An open app, in memory and on a server."""
    async with Dibs(any_url) as app:
        yield app


@pytest.fixture
def any_queue(any_app: Dibs) -> Queue:
    """An empty queue, in memory and on a server."""
    return any_app.queue(f"q-{os.urandom(6).hex()}")


@pytest.fixture
def loop_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the calls of the blocking API that an event loop runs."""
    calls: list[str] = []
    start = LoopCall.start

    def noted(call: LoopCall[Any], loop: Any) -> None:
        calls.append(call.async_form)
        start(call, loop)

    monkeypatch.setattr(LoopCall, "start", noted)
    return calls
