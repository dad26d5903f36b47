"""A TCP proxy that delays the bytes of clients; it runs in a separate process.

`python -m benchmarks.conditions.proxy HOST PORT MS` prints the port on which it listens. It delays only the
direction to the server, by the whole time. So each round trip takes so much longer, and a pipeline of
requests is delayed once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 1 << 16


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            # call_later keeps the order of chunks, also of two that are due at the same time.
            loop.call_later(seconds, writer.write, chunk)
    loop.call_later(seconds, writer.close)


async def serve(host: str, port: int, ms: float) -> None:
    """Forward each connection to the server, until the process is killed."""

    async def on_connect(client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(
            _forward(client_reader, server_writer, ms / 1000), _forward(server_reader, client_writer, 0)
        )

    server = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def delayed_url(url: str, ms: float) -> Iterator[str]:
    """Yield a URL of the same server whose round trips take `ms` longer."""
    parts = urlsplit(url)
    module = "benchmarks.conditions.proxy"
    command = [sys.executable, "-m", module, str(parts.hostname), str(parts.port), str(ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout
        try:
            port = proxy.stdout.readline().strip()
            before, _, after = url.rpartition(f":{parts.port}")
            yield f"{before}:{port}{after}"
        finally:
            proxy.kill()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
