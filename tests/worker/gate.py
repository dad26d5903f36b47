"""A gate that handlers in other processes wait at, and the exit of processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

#: The process of a handler at the gate, and the connection to it.
Arrival = tuple[int, asyncio.StreamReader, asyncio.StreamWriter]


class Gate:
    """A socket that handlers in other processes connect to; they wait there until the test releases them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._arrivals: dict[str, asyncio.Future[Arrival]] = {}
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[Gate]:
        gate = cls(path)
        server = await asyncio.start_unix_server(gate._on_connection, str(path))
        try:
            yield gate
        finally:
            server.close()
            for writer in gate._writers:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        name, _, pid = (await reader.readline()).decode().strip().partition(" ")
        previous = self._arrival(name)
        if previous.done():
            del self._arrivals[name]
        self._arrival(name).set_result((int(pid), reader, writer))

    def _arrival(self, name: str) -> asyncio.Future[Arrival]:
        return self._arrivals.setdefault(name, asyncio.get_running_loop().create_future())

    async def arrived(self, name: str) -> int:
        """Wait until a handler is at the gate, and return its process id."""
        async with asyncio.timeout(60):
            return (await self._arrival(name))[0]

    async def release(self, *names: str) -> None:
        """Release handlers, and wait until they have closed their connections."""
        for name in names:
            _, reader, writer = await self._arrival(name)
            writer.write(b"go\n")
            del self._arrivals[name]
            with suppress(ConnectionError):
                await reader.read()

    async def release_without_waiting(self, name: str) -> None:
        """Release a handler without waiting until it has left."""
        _, _, writer = await self._arrival(name)
        writer.write(b"go\n")
        del self._arrivals[name]

    async def release_if_it_arrives(self, name: str, until: asyncio.Future[Any]) -> None:
        """Release a handler if it arrives before `until` is done."""
        arrival = self._arrival(name)
        await asyncio.wait([arrival, until], return_when=asyncio.FIRST_COMPLETED)
        if arrival.done():
            await self.release_without_waiting(name)

    def expect_again(self, name: str) -> None:
        """Forget the arrival of this name, so that `arrived` waits for the next one."""
        self._arrivals.pop(name, None)


async def wait_for_exit(pid: int) -> None:
    """Wait until a process has ended; it need not be a child of this one."""
    exited = asyncio.Event()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    asyncio.get_running_loop().add_reader(pidfd, exited.set)
    try:
        async with asyncio.timeout(10):
            await exited.wait()
    finally:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
