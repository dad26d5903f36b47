"""The health endpoints, and connections that send nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from dibs.worker.supervisor import health
from dibs.worker.supervisor.health import MAX_CONNECTIONS, MAX_HEAD, Health, serve_health

STATE = Health(ready=True, stopping=False, processes=(), running=0)


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, int]]:
    monkeypatch.setattr(health, "REQUEST_TIMEOUT", 3600.0)
    listener = socket.create_server(("127.0.0.1", 0))
    async with serve_health(listener, lambda: STATE):
        yield listener.getsockname()
    await asyncio.sleep(0)  # the connections that the end of the block aborted are closed


async def get(address: tuple[str, int], head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_idle_connections_block_no_request(address: tuple[str, int]) -> None:
    """Of more connections than allowed, the oldest are closed."""
    idle = [await asyncio.open_connection(*address) for _ in range(MAX_CONNECTIONS + 10)]
    answer = await get(address, b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(30):
        oldest = await idle[0][0].read()
    newest_is_open = not idle[-1][0].at_eof()
    for _, writer in idle:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert (b"", True) == (oldest, newest_is_open)


async def test_a_request_without_end_is_closed(address: tuple[str, int]) -> None:
    assert b"" == await get(address, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * MAX_HEAD)
