"""The check of a server when a storage is opened."""

from __future__ import annotations

import logging
import os

import pytest

from dibs import open_storage
from dibs_conformance.servers import PostgresServer


async def test_a_process_warns_once_of_a_server_without_fsync(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{postgres_server.url}?schema=test_{os.urandom(4).hex()}"
    with caplog.at_level(logging.WARNING, "dibs.storage.postgres"):
        for _ in range(3):
            async with open_storage(url) as storage:
                assert "fsync is off; weak" in storage.durability

    assert 1 == len(caplog.messages)
    assert "fsync is off; weak: a crash of the machine may damage all data" in caplog.messages[0]
