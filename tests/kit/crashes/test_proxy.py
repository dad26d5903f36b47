"""The relay between a storage and its server: it hands on what it is given, and cuts where it was told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dibs_conformance.crashes.proxy import LOOPBACK, Proxy, has_server


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
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
        # The relay may be gone before it has heard all.
        with connection, suppress(OSError):
            while chunk := connection.recv(100):
                connection.sendall(chunk)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy.for_url(f"echo://{LOOPBACK}:{echo}") as opened:
        yield opened


def send(proxy: Proxy, data: bytes) -> bytes:
    """What comes back for these words, until as much came or the connection ends."""
    received = b""
    with socket.create_connection((LOOPBACK, proxy.port), 10) as connection:
        connection.sendall(data)
        while len(received) < len(data) and (chunk := connection.recv(100)):
            received += chunk
    return received


def test_it_hands_on_and_counts(proxy: Proxy) -> None:
    proxy.arm()

    assert b"hello" == send(proxy, b"hello")
    assert {"request": 5, "reply": 5} == proxy.bytes


def test_it_cuts_the_request_after_so_many_bytes(proxy: Proxy) -> None:
    proxy.arm("request", 3)

    assert len(send(proxy, b"hello")) <= 3
    assert (1, 3) <= (proxy.cuts, proxy.bytes["request"])


def test_it_cuts_the_reply_after_so_many_bytes_and_then_no_more(proxy: Proxy) -> None:
    proxy.arm("reply", 2)

    assert b"he" == send(proxy, b"hello")
    assert b"hello" == send(proxy, b"hello")


@pytest.mark.parametrize(
    ("url", "found"),
    [("redis://h:1/0", True), ("file:./x", False), ("unix:///a.sock", False), ("postgresql://h/d", False)],
)
def test_it_stands_before_a_host_and_a_port(url: str, *, found: bool) -> None:
    assert found == has_server(url)
