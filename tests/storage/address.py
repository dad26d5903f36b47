"""A TCP address whose server can change, as in a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext
from typing import TypeVar

from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs_conformance.servers.processes import LOOPBACK

T = TypeVar("T")


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Call again until the server answers; until then, an error of promise 7 is allowed."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except (OutcomeUnknown, StorageUnavailable):
                await asyncio.sleep(0.05)


class Address:
    """A TCP proxy to the port of the current primary."""

    def __init__(self, to: int) -> None:
        self.port = 0
        #: The bytes forwarded in both directions.
        self.passed = 0
        self._to = to
        self._open: set[asyncio.StreamWriter] = set()
        #: For each connection that is forwarded, the bytes that its client sent, and whether they still pass.
        self._sent: dict[asyncio.StreamWriter, bytearray] = {}
        self._frozen: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def move(self, to: int) -> None:
        """Forward to another server from now on, and close the existing connections."""
        self.lead(to)
        for writer in self._open:
            writer.transport.abort()

    def lead(self, to: int) -> None:
        """Forward new connections to another server. Existing ones stay, as when DNS changes a name."""
        self._to = to

    def freeze(self, words: bytes) -> None:
        """Drop all further bytes of the connections whose clients have sent `words`, without closing them."""
        found = {writer for writer, sent in self._sent.items() if words in sent}
        assert found, f"no client has sent {words!r}"
        self._frozen |= found

    async def close(self) -> None:
        """Stop the proxy."""
        self.move(0)
        if self._serving:
            await asyncio.wait(self._serving)
        # A transport closes in the next iteration of the loop; else a later test gets its ResourceWarning.
        await asyncio.sleep(0)

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, asks = await asyncio.open_connection(LOOPBACK, self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, asks}
        self._open |= ends
        self._sent[writer] = bytearray()
        try:
            await asyncio.gather(self._pass_on(reader, asks, writer), self._pass_on(answers, writer, writer))
        finally:
            for end in ends:
                end.close()
            self._open -= ends
            self._sent.pop(writer, None)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if client in self._frozen:
                    continue
                self.passed += len(data)
                if writer is not client:
                    self._sent[client] += data[:100]
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def address_of(port: int, *, tls: SSLContext | None = None) -> AsyncIterator[Address]:
    """Yield an address that leads to `port`; with TLS, if asked for, ended at the address."""
    address = Address(port)
    listening = await asyncio.start_server(address.begin, LOOPBACK, 0, ssl=tls)
    address.port = listening.sockets[0].getsockname()[1]
    try:
        yield address
    finally:
        listening.close()
        await address.close()
