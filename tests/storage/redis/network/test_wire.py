"""WireConnection and its pool: complete replies, replies to cancelled callers, and lost connections."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest
from redis.asyncio.connection import Connection
from redis.exceptions import ConnectionError as Unconnected
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as TooLate

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import RedisStorage
from dibs.storage.redis.network import connections
from dibs.storage.redis.network.connections import RedisConnections
from dibs.storage.redis.network.wire import WireConnection
from dibs.storage.redis.wakeups import listener as wakeups
from dibs_conformance.crashes.interrupted_calls import Proxy
from dibs_conformance.servers import RedisServer

TIMEOUT = 30.0


@pytest.fixture
async def wire(redis_server: RedisServer) -> AsyncIterator[WireConnection]:
    connection = Connection(host="127.0.0.1", port=redis_server.port, password=redis_server.password)
    await connection.connect()  # type: ignore[no-untyped-call]
    wire = WireConnection(connection)
    yield wire
    await wire.aclose()


async def test_a_cancelled_check_of_an_idle_connection_loses_no_connection(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_CHECK", -1.0)
    made: list[Connection] = []

    def make() -> Connection:
        made.append(Connection(host="127.0.0.1", port=redis_server.port, password=redis_server.password))
        return made[-1]

    pool = RedisConnections(make, "here", 10)
    await pool.call("ECHO", "first")
    looking = asyncio.ensure_future(pool.call("ECHO", "second"))
    await asyncio.sleep(0)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    await pool.call("ECHO", "third")
    await pool.close()

    assert 1 == len(made)


def pool_of(redis_server: RedisServer, most: int) -> RedisConnections:
    port, password = redis_server.port, redis_server.password
    return RedisConnections(lambda: Connection(host="127.0.0.1", port=port, password=password), "here", most)


async def test_requests_beyond_the_limit_wait_in_their_order(redis_server: RedisServer) -> None:
    pool = pool_of(redis_server, 2)
    replies: list[bytes] = []

    async def call(word: str) -> None:
        replies.append(await pool.call("ECHO", word))

    blocked = [asyncio.ensure_future(pool.call("BLPOP", f"room-{n}", 0)) for n in range(2)]
    await asyncio.sleep(0)
    late = [asyncio.ensure_future(call(word)) for word in "abc"]
    await asyncio.sleep(0)
    late[1].cancel()
    await asyncio.to_thread(redis_server.execute, "LPUSH", "room-0", "1")
    await asyncio.wait(late, timeout=TIMEOUT)
    assert [b"a", b"c"] == replies

    await asyncio.to_thread(redis_server.execute, "LPUSH", "room-1", "1")
    await asyncio.wait_for(asyncio.gather(*blocked), TIMEOUT)
    assert 2 == len(pool._idle)
    await pool.close()


async def test_a_cancelled_caller_gives_its_slot_to_the_next(redis_server: RedisServer) -> None:
    pool = pool_of(redis_server, 1)
    pool._in_flight = 1
    gone, next_one = (asyncio.ensure_future(pool.call("ECHO", word)) for word in "ab")
    await asyncio.sleep(0)
    pool._free_slot()
    gone.cancel()

    assert b"b" == await asyncio.wait_for(next_one, TIMEOUT)
    assert (True, 0) == (gone.cancelled(), pool._in_flight)
    await pool.close()


async def cancelled(pool: RedisConnections, redis_server: RedisServer, *keys: str) -> None:
    """Open a connection for each key, and leave a request in flight on it whose caller was cancelled."""
    await asyncio.gather(*(pool.call("ECHO", key) for key in keys))
    cancelled_request = [asyncio.ensure_future(pool.call("BLPOP", key, 0)) for key in keys]
    await asyncio.sleep(0)
    for one in cancelled_request:
        one.cancel()
    await asyncio.wait(cancelled_request, timeout=TIMEOUT)
    assert len(keys) == len(pool._draining)


async def test_a_cancelled_request_keeps_its_slot_until_its_reply_is_read(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled requests keep their slots, so the pool opens no more connections than its limit."""
    monkeypatch.setattr(connections, "IDLE_CHECK", math.inf)
    pool = pool_of(redis_server, 2)
    await cancelled(pool, redis_server, "left-0", "left-1")
    late = [asyncio.ensure_future(pool.call("ECHO", word)) for word in "abc"]
    await asyncio.sleep(0)
    for key in ("left-0", "left-1"):
        await asyncio.to_thread(redis_server.execute, "LPUSH", key, "1")

    assert [b"a", b"b", b"c"] == await asyncio.wait_for(asyncio.gather(*late), TIMEOUT)
    assert (2, 0) == (len(pool._idle), pool._in_flight)
    await pool.close()


async def test_a_lost_reply_frees_the_slot_of_a_cancelled_request(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_CHECK", math.inf)
    pool = pool_of(redis_server, 1)
    await cancelled(pool, redis_server, "never")
    late = asyncio.ensure_future(pool.call("ECHO", "a"))
    await asyncio.to_thread(redis_server.execute, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert b"a" == await asyncio.wait_for(late, TIMEOUT)
    assert (1, 0) == (len(pool._idle), pool._in_flight)
    await pool.close()


async def test_a_reset_connection_frees_the_slot_of_a_cancelled_request(
    redis_server: RedisServer,
) -> None:
    """A reset raises OSError in the task that reads the reply: asyncio would log it as never retrieved."""
    with Proxy.for_url(redis_server.url) as proxy:
        pool = RedisConnections(
            lambda: Connection(host="127.0.0.1", port=proxy.port, password=redis_server.password), "here", 1
        )
        await cancelled(pool, redis_server, "reset")
        (reading,) = pool._draining
        proxy._loop.call_soon_threadsafe(reset_connections, proxy)
        await asyncio.wait({reading}, timeout=TIMEOUT)

        assert reading.done()
        assert reading.exception() is None
        assert ([], 0) == (pool._idle, pool._in_flight)
        await pool.close()


def reset_connections(proxy: Proxy) -> None:
    for writer in proxy._writers:
        # Without lingering, close() sends RST instead of FIN.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


async def test_a_reply_in_many_parts_is_complete(wire: WireConnection) -> None:
    text = b"\r\n$5\0" * 500_000

    assert text == await wire.request(("ECHO", text), TIMEOUT)


async def test_a_connection_is_usable_after_an_error_reply(wire: WireConnection) -> None:
    with pytest.raises(ResponseError, match="unknown command"):
        await wire.request(("NOSUCH",), TIMEOUT)

    assert (b"a", False) == (await wire.request(("ECHO", "a"), TIMEOUT), wire.has_pending_reply)


async def test_a_reply_that_has_arrived_is_no_longer_pending(wire: WireConnection) -> None:
    cancelled_request = asyncio.ensure_future(wire.request(("ECHO", "first"), TIMEOUT))
    await asyncio.sleep(0)
    cancelled_request.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled_request
    async with asyncio.timeout(TIMEOUT):
        while wire.has_pending_reply:  # noqa: ASYNC110 - the reply wakes no task
            await asyncio.sleep(0)
        assert await wire.read_pending_reply(2 * TIMEOUT) is None

    assert b"second" == await wire.request(("ECHO", "second"), TIMEOUT)


async def test_the_reply_to_a_cancelled_request_is_read_before_the_next(
    wire: WireConnection, redis_server: RedisServer
) -> None:
    cancelled_request = asyncio.ensure_future(wire.request(("BLPOP", "first", 0), TIMEOUT))
    await asyncio.sleep(0)
    cancelled_request.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled_request

    assert wire.has_pending_reply
    redis_server.execute("LPUSH", "first", "1")
    assert [b"first", b"1"] == await wire.read_pending_reply(TIMEOUT)
    assert b"second" == await wire.request(("ECHO", "second"), TIMEOUT)


async def test_a_lost_connection_ends_its_request(wire: WireConnection, redis_server: RedisServer) -> None:
    number = await wire.request(("CLIENT", "ID"), TIMEOUT)
    blocked = asyncio.ensure_future(wire.request(("BLPOP", "nothing", 0), TIMEOUT))
    await asyncio.to_thread(redis_server.execute, "CLIENT", "KILL", "ID", str(number))

    with pytest.raises((Unconnected, OSError)):
        await blocked
    with pytest.raises(Unconnected):
        await wire.request(("ECHO", "a"), TIMEOUT)
    assert not wire.is_open


async def test_a_late_reply_closes_the_connection(wire: WireConnection) -> None:
    with pytest.raises(TooLate, match=r"within 0\.01 s"):
        await wire.request(("BLPOP", "nothing", 0), 0.01)

    assert not wire.is_open


async def test_each_request_has_its_own_timeout(wire: WireConnection) -> None:
    await wire.request(("ECHO", "a"), 0.05)

    assert await wire.request(("BLPOP", "nothing", "0.2"), TIMEOUT) is None
    with pytest.raises(TooLate, match=r"within 0\.01 s"):
        await wire.request(("BLPOP", "nothing", 0), 0.01)


async def test_a_channel_without_waits_is_unsubscribed_and_subscribed_again(
    opened: Callable[..., RedisStorage],
    redis_server: RedisServer,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def channels() -> list[str]:
        return list(redis_server.execute("PUBSUB", "CHANNELS", f"{prefix}:*"))

    async with opened(poll=60.0) as mine, opened() as others:
        await mine.wait(["q"], timeout=0.01)
        assert f"{prefix}:{{q}}:0:work" in channels()
        with monkeypatch.context() as patch:
            patch.setattr(wakeups, "LINGER", 0.0)
            async with asyncio.timeout(TIMEOUT):
                while channels():
                    await others.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])

        waiting = asyncio.create_task(mine.wait(["q"], since={"q": ""}, timeout=TIMEOUT))
        assert (await waiting).woken
        assert f"{prefix}:{{q}}:0:work" in channels()
