"""Waiting for a storage that is unavailable: the errors that pass by themselves, and the lines about them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import psycopg
import pytest
from redis.exceptions import AuthenticationError, BusyLoadingError

from dibs.errors import ConfigurationError, OutcomeUnknown, StorageBusy
from dibs.storage.postgres.network.errors import DriverErrors
from dibs.storage.redis.network.errors import translate_error
from dibs.worker.supervisor import health
from dibs.worker.supervisor.availability import may_open_later, wait_until_available
from dibs.worker.supervisor.health import MAX_CONNECTIONS, MAX_HEAD, Health, make_response, serve_health


@pytest.mark.parametrize(
    "error",
    [
        # The text is that of redis-py for a server that loads its dataset.
        translate_error(BusyLoadingError("Redis is loading the dataset in memory"), "redis://localhost"),
        DriverErrors("postgresql://localhost", "localhost").to_connect_error(
            psycopg.OperationalError("FATAL:  the database system is starting up")
        ),
        StorageBusy("the storage did not answer before the deadline"),
        OutcomeUnknown("a migration was sent"),
    ],
)
def test_a_server_that_starts_is_waited_for(error: Exception) -> None:
    assert may_open_later(error)


@pytest.mark.parametrize(
    "error",
    [
        translate_error(AuthenticationError("WRONGPASS"), "redis://localhost"),
        DriverErrors("postgresql://localhost", "localhost").to_connect_error(
            psycopg.OperationalError("password authentication failed")
        ),
        ConfigurationError("is starting up"),
    ],
    ids=["password of Redis", "password of Postgres", "another error"],
)
def test_an_error_that_somebody_must_correct_is_raised(error: Exception) -> None:
    assert not may_open_later(error)


async def test_an_error_without_text_is_logged_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    errors = [TimeoutError()]

    async def grant() -> str:
        if errors:
            raise errors.pop()
        return "lease"

    assert "lease" == await wait_until_available(grant, "no lease", lambda _: True)
    assert caplog.messages[0].endswith("trying again: TimeoutError")


# -- The health endpoints, and connections that send nothing -----------------------------------------


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


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"", b"200 OK"),
        (b"Host: localhost:8080\r\n", b"200 OK"),
        (b"host:127.0.0.1\r\n", b"200 OK"),
        (b"Host: evil.example\r\n", b"421 Misdirected Request"),
        (b"HOST : evil.example:8080\r\n", b"421 Misdirected Request"),
        (b"Host: localhost\r\nHost: evil.example\r\n", b"421 Misdirected Request"),
        (b"Host: \xff\r\n", b"421 Misdirected Request"),
    ],
)
async def test_a_page_whose_name_leads_to_this_machine_reads_nothing(
    address: tuple[str, int], host: bytes, status: bytes
) -> None:
    answer = await get(address, b"GET /readyz HTTP/1.1\r\n" + host + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 " + status)
    assert (b'"ready"' in answer) == (status == b"200 OK")


def test_a_server_that_other_machines_reach_answers_to_any_name() -> None:
    head = b"GET /readyz HTTP/1.1\r\nHost: worker-7.example.org\r\n\r\n"

    assert make_response(head, STATE, checks_host=False).startswith(b"HTTP/1.1 200 OK")
