"""The connection of the listener is lost: until dibs has a new one, polls end the waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer
from dibs_conformance.servers.processes import LOOPBACK
from tests.storage.address import Address, address_of
from tests.storage.postgres.jobs import asked, claimed

#: Seconds within which a poll of 0.2 s ends a wait, on a busy machine, too.
PROMPT = 5.0


@pytest.fixture
async def address(postgres_server: PostgresServer) -> AsyncIterator[Address]:
    async with address_of(postgres_server.port) as address:
        yield address


@pytest.fixture
def url(postgres_server: PostgresServer, address: Address, schema: str) -> str:
    server = postgres_server
    return f"postgresql://{server.user}:{server.password}@{LOOPBACK}:{address.port}/postgres?schema={schema}"


async def listening(storage: PostgresStorage) -> None:
    """Make the storage listen to the queue and know its state, so that a later wait begins without a read."""
    await storage.enqueue("q", [asked("x")])
    await claimed(storage)
    await storage.wait(["q"], timeout=0.01)


async def test_a_listener_that_is_cut_off_silently_is_replaced(
    url: str,
    address: Address,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As by a firewall that drops the packets of a connection: the client gets neither a FIN nor a RST."""
    monkeypatch.setattr("dibs.storage.postgres.wakeups.listener.ECHO_SECONDS", 0.3)
    monkeypatch.setattr("dibs.storage.postgres.wakeups.listener.QUIET_SECONDS", 0.5)
    async with open_url(url, poll=0.2) as storage:
        await listening(storage)
        address.freeze(b"LISTEN")
        await storage.enqueue("q", [asked("a")])
        began = time.monotonic()
        assert (await storage.wait(["q"], timeout=2 * PROMPT)).woken
        assert PROMPT > time.monotonic() - began
        await claimed(storage)
        await told(caplog, "wake-ups are back")

    words = [record.message for record in caplog.records if "wake-ups" in record.message]
    assert ["no wake-ups", "wake-ups are back"] == [
        "no wake-ups" if "no wake-ups" in word else "wake-ups are back" for word in words
    ]


async def told(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while words not in caplog.text:  # noqa: ASYNC110 - a log tells no event
            await asyncio.sleep(0.02)


async def test_connections_have_keepalives(url: str) -> None:
    async with open_url(url) as storage, storage._server.check_open().borrow() as connection:
        params = connection.info.get_parameters()

    assert ("30", "10", "3", "30000") == tuple(
        params[name]
        for name in ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    )
