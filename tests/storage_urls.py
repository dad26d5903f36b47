"""URLs of new, empty storages, for tests that run on several kinds of storage."""

from __future__ import annotations

import os

import pytest


def new_url(scheme: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new, empty storage; the first test on a server starts that server."""
    name = f"test_{os.urandom(4).hex()}"
    match scheme:
        case "memory":
            return f"memory:{name}"
        case "file":
            return f"file:{request.getfixturevalue('tmp_path')}/{name}"
        case "redis":
            return f"{request.getfixturevalue('redis_server').url}?prefix={name}"
        case "cluster":
            return f"{request.getfixturevalue('redis_cluster').url}?prefix={name}"
        case "postgresql":
            return f"{request.getfixturevalue('postgres_server').url}?schema={name}"
        case _:
            raise ValueError(scheme)


def unexpected_lines(stderr: str) -> list[str]:
    """Return the lines of stderr without the durability warnings of servers.

    The servers of tests run without fsync or persistence, and dibs logs a warning for such a storage.
    """
    return [line for line in stderr.splitlines() if not line.startswith(("redis://", "postgresql://"))]
