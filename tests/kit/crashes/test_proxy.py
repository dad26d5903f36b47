"""The proxy between a storage and its server: it forwards bytes, and cuts connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dibs_conformance.crashes.interrupted_calls import LOOPBACK, Proxy, has_server


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back all bytes it receives. Yields its port."""
    with socket.create_server((LOOPBACK, 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]


def serve(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        # The proxy may close the connection before it has read everything.
        with connection, suppress(OSError):
            while chunk := connection.recv(100):
                connection.sendall(chunk)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy.for_url(f"echo://{LOOPBACK}:{echo}") as opened:
        yield opened


def send(proxy: Proxy, data: bytes) -> bytes:
    """Send data through the proxy. Return the reply, which ends early if the connection is cut."""
    received = b""
    with socket.create_connection((LOOPBACK, proxy.port), 10) as connection:
        connection.sendall(data)
        while len(received) < len(data) and (chunk := connection.recv(100)):
            received += chunk
    return received


def test_it_forwards_and_counts_bytes(proxy: Proxy) -> None:
    proxy.arm()

    assert b"hello" == send(proxy, b"hello")
    assert {"request": 5, "reply": 5} == proxy.bytes


def test_it_cuts_a_request_after_n_bytes(proxy: Proxy) -> None:
    proxy.arm("request", 3)

    assert len(send(proxy, b"hello")) <= 3
    assert (1, 3) <= (proxy.cuts, proxy.bytes["request"])


def test_it_cuts_one_reply_after_n_bytes(proxy: Proxy) -> None:
    proxy.arm("reply", 2)

    assert b"he" == send(proxy, b"hello")
    assert b"hello" == send(proxy, b"hello")


@pytest.mark.parametrize(
    ("url", "found"),
    [("redis://h:1/0", True), ("file:./x", False), ("unix:///a.sock", False), ("postgresql://h/d", False)],
)
def test_only_urls_with_host_and_port_have_a_server(url: str, *, found: bool) -> None:
    assert found == has_server(url)
