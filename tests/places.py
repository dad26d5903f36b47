"""Empty places on every storage, for tests of what runs on all of them by its URL alone."""

from __future__ import annotations

import os

import pytest


def place(scheme: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a place nobody has used; its server is started when the first test asks."""
    name = f"place_{os.urandom(4).hex()}"
    match scheme:
        case "memory":
            return f"memory:{name}"
        case "file":
            return f"file:{request.getfixturevalue('tmp_path')}/{name}"
        case "redis":
            return f"{request.getfixturevalue('redis_server').url}?prefix={name}"
        case "postgresql":
            return f"{request.getfixturevalue('postgres_server').url}?schema={name}"
        case _:
            raise ValueError(scheme)


def complaints(stderr: str) -> list[str]:
    """Return what was said on stderr, but for what a place says of itself when it is opened.

    Servers for tests are quick and may forget; dibs says so.
    """
    return [line for line in stderr.splitlines() if not line.startswith(("redis://", "postgresql://"))]
