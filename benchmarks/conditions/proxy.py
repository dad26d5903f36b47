"""A server that is further away: a TCP proxy that holds back what clients send, in a process of its own.

`python -m benchmarks.conditions.proxy HOST PORT MS` prints the port it listens on. Only one direction is
delayed, by the whole of it: a round trip takes that much longer, and what is sent together arrives together.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 1 << 16


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            # call_later keeps the order of what is due; call_at of the same moment does as well.
            loop.call_later(seconds, writer.write, chunk)
    loop.call_later(seconds, writer.close)


async def serve(host: str, port: int, ms: float) -> None:
    """Carry every connection to the server, until killed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_server = await asyncio.open_connection(host, port)
        await asyncio.gather(_carry(reader, to_server, ms / 1000), _carry(there, writer, 0))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def further(url: str, ms: float) -> Iterator[str]:
    """Yield a URL of the same server, so many ms further away."""
    parts = urlsplit(url)
    words = [
        sys.executable,
        "-m",
        "benchmarks.conditions.proxy",
        str(parts.hostname),
        str(parts.port),
        str(ms),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        try:
            port = proxy.stdout.readline().strip()
            before, _, after = url.rpartition(f":{parts.port}")
            yield f"{before}:{port}{after}"
        finally:
            proxy.kill()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
