"""The rates with a proxy that adds a delay to each message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import define

from benchmarks.peers.backends import Backend
from benchmarks.peers.environments import Environment, Usage
from benchmarks.peers.measure import Effort, Run
from benchmarks.peers.systems import PEERS, Peer

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
    module = "benchmarks.conditions.network_delay"
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


#: All rows use the proxy, also that with 0 ms, so that the cost of the proxy is the same in each.
ADDED_MS: Final = (0, 1, 2)
KINDS: Final = ("redis", "postgresql")


@define
class DelayedBackend:
    """A backend behind delay proxies. `stack` stops the proxies."""

    backend: Backend
    ms: float
    stack: ExitStack

    def reset(self) -> str:
        """Empty the backend and return its URL behind a new proxy."""
        return self.stack.enter_context(delayed_url(self.backend.reset(), self.ms))

    def usage(self) -> Usage | None:
        """Return the usage of the server without the proxy."""
        return self.backend.usage()

    def size(self, *, compact: bool = False) -> int | None:
        return self.backend.size(compact=compact)

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        return self.backend.left(expressions, queues)


def dibs_peer(kind: str) -> Peer:
    """Return dibs without outcomes of completed jobs."""
    return next(peer for peer in PEERS if peer.kind == kind and peer.runtime == "dibs")


def measure(
    by_kind: dict[str, Backend], *, jobs: int, show_step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row for each server and delay."""
    return [_row(kind, by_kind[kind], ms, jobs, show_step) for kind in KINDS for ms in ADDED_MS]


def _row(kind: str, backend: Backend, ms: int, jobs: int, show_step: Callable[[str], None]) -> dict[str, Any]:
    show_step(f"{kind}, {ms} ms of delay")
    peer = dibs_peer(kind)
    with ExitStack() as stack:
        delayed = DelayedBackend(backend, ms, stack)
        effort = Effort(jobs=jobs / peer.line, latency_jobs=50)
        run = Run(peer, Environment(Path(), peer), delayed, effort)
        figures = run.enqueue()
        variables = run.prepare()
        figures |= run.pickup(variables) | run.drain(variables, jobs)
    return {
        "kind": kind,
        "added_ms": ms,
        "enqueue": round(figures["enqueue_jobs"] / figures["enqueue_seconds"]),
        "drain": round(figures["drain_jobs"] / figures["drain_seconds"]),
        "pickup_p50_ms": round(figures["pickup_ms"][0], 2),
    }
