"""Measure the dashboard: `python -m benchmarks.dashboard [URL ...] [--servers] [--queues N ...] [--jobs N]`.

For each storage and number of queues:

- `first`: ms from the request to the last byte of the first overview of a new `dibs web`; and its kB.
- `again`: the median of ten later views, and of the page of a queue.
- `calls`: the calls of the storage for the first view, by verb, counted in this process.

`--viewers N ...` instead opens that many live overviews for `--seconds`, and shows the CPU time
and the memory of the process that serves them, its calls of the storage, and the updates that each
viewer got. That process counts the calls, so it is one of this program and not `dibs web`.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from statistics import median
from typing import Any, Final, Self
from uuid import uuid4

import httpx2
import psutil
import uvicorn
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from benchmarks.scenarios import fill, requests
from benchmarks.storages import private_servers
from dibs import Dibs
from dibs.model.requests import EnqueueRequest
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage, remove_storage
from dibs.web import dibs_web
from dibs.web.pages import Pages
from dibs.web.reading.source import Source

VIEWS: Final = 10


@asynccontextmanager
async def filled(url: str, queues: int, jobs: int) -> AsyncIterator[tuple[Storage, str]]:
    """Yield a storage with waiting jobs, spread evenly over queues, and its URL."""
    each: list[EnqueueRequest] = requests(max(1, jobs // queues))
    full = url.replace("NAME", f"bench_{uuid4().hex}")
    async with open_storage(full) as storage:
        for number in range(queues):
            await fill(storage, f"queue-{number:04}", each)
        yield storage, full
    await remove_storage(full)


@contextmanager
def dashboard(url: str, *, is_counted: bool = False) -> Iterator[tuple[str, psutil.Process]]:
    """Run `dibs web`, or a server that counts calls, on a free port; yield its address and its process."""
    words = ["dibs", "web", "--port", "0", "--json", "--url"]
    command = [sys.executable, "-m", *(["benchmarks.dashboard", "--serve"] if is_counted else words), url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def timed(client: httpx2.Client, address: str) -> tuple[float, int]:
    """Return the ms and the bytes of a request."""
    begun = time.perf_counter()
    answer = client.get(address)
    answer.raise_for_status()
    return (time.perf_counter() - begun) * 1000, len(answer.content)


def measure_views(url: str) -> dict[str, float]:
    with dashboard(url) as (address, _), httpx2.Client() as client:
        first, size = timed(client, address)
        again, queue = [], []
        for _ in range(VIEWS):
            # Longer than a reading is shared.
            time.sleep(0.6)
            again.append(timed(client, address)[0])
            queue.append(timed(client, f"{address}queue?name=queue-0000")[0])
    return {"first": first, "kB": size / 1000, "again": median(again), "queue": median(queue)}


class CountedVerbs:
    """An open storage that counts its calls by verb, and that stays open for its owner."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.calls: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if inspect.iscoroutinefunction(found):
            self.calls[name] += 1
        return found


async def serve_counted(url: str) -> None:
    """Serve a dashboard on a free port, with the number of its calls of the storage at /calls."""
    app = Dibs("memory:")
    async with open_storage(url) as storage:
        counted = CountedVerbs(storage)

        def calls(_: Request) -> JSONResponse:
            return JSONResponse(counted.calls.total())

        with app.override_storage(counted), socket.create_server(("127.0.0.1", 0)) as listener:
            served = Starlette(routes=[Route("/calls", calls), Mount("/", dibs_web(app, allow="read"))])
            print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}/"}), flush=True)
            config = uvicorn.Config(served, log_level="error", timeout_graceful_shutdown=1)
            await uvicorn.Server(config).serve(sockets=[listener])


async def count_calls(storage: Storage) -> str:
    """Return the calls of a first view of the overview, by verb."""
    app, counted = Dibs("memory:"), CountedVerbs(storage)
    with app.override_storage(counted):
        async with app:
            counted.calls.clear()
            await Pages(Source(app)).read(("overview", ()))
    return ", ".join(f"{count} {name}" for name, count in sorted(counted.calls.items()))


async def measure_queues(urls: Sequence[str], counts: Sequence[int], jobs: int) -> Table:
    table = Table("storage", "queues", "first, ms", "kB", "again, ms", "queue, ms", "calls of the first view")
    for url in urls:
        for queues in counts:
            async with filled(url, queues, jobs) as (storage, full):
                found = await asyncio.to_thread(measure_views, full)
                calls = await count_calls(storage)
            figures = (f"{found[name]:.0f}" for name in ("first", "kB", "again", "queue"))
            table.add_row(url.partition(":")[0], f"{queues:,}", *figures, calls)
    return table


async def measure_viewers(urls: Sequence[str], viewers: Sequence[int], seconds: float) -> Table:
    table = Table("storage", "viewers", "CPU, %", "memory, MB", "calls/s", "updates/s to each")
    for url in urls:
        async with filled(url, 7, 7000) as (storage, full):
            for number in viewers:
                with dashboard(full, is_counted=True) as (address, process):
                    found = await watch(address, process, storage, number, seconds)
                figures = (f"{found[0]:.1f}", f"{found[1]:.0f}", f"{found[2]:.1f}", f"{found[3]:.2f}")
                table.add_row(url.partition(":")[0], f"{number}", *figures)
    return table


async def watch(
    address: str, process: psutil.Process, storage: Storage, viewers: int, seconds: float
) -> tuple[float, float, float, float]:
    """Keep live overviews open while a queue changes.

    Return the CPU in %, the memory in MB, the calls of the storage and the updates to each viewer a second.
    """
    updates = 0

    async def one(client: httpx2.AsyncClient) -> None:
        nonlocal updates
        async with client.stream("GET", f"{address}live/overview") as answer:
            async for line in answer.aiter_lines():
                updates += line.startswith("event: page")

    async def change() -> None:
        while True:
            await storage.enqueue("queue-0000", requests(1))
            await storage.forget("queue-0000", [requests(1)[0].job.id])
            await asyncio.sleep(0.5)

    limits = httpx2.Limits(max_connections=None)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx2.AsyncClient(timeout=None, limits=limits))
        tasks = [asyncio.create_task(one(client)) for _ in range(viewers)]
        tasks.append(asyncio.create_task(change()))
        await asyncio.sleep(3)
        begun = (await client.get(f"{address}calls")).json()
        before, updates = sum(process.cpu_times()[:2]), 0
        await asyncio.sleep(seconds)
        used = sum(process.cpu_times()[:2]) - before
        calls = (await client.get(f"{address}calls")).json() - begun
        memory, found = process.memory_info().rss / 1e6, updates
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return used / seconds * 100, memory, calls / seconds, found / seconds / viewers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("urls", nargs="*", metavar="URL", help="with NAME for a new, empty storage")
    parser.add_argument("--servers", action="store_true", help="start a Redis and a Postgres")
    parser.add_argument("--queues", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="waiting jobs of all queues together")
    parser.add_argument("--viewers", type=int, nargs="+", help="measure live viewers instead")
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve_counted(given.serve))
        return
    with ExitStack() as stack:
        urls = list(given.urls)
        if given.servers:
            urls += stack.enter_context(private_servers())[0]
        if given.viewers:
            table = asyncio.run(measure_viewers(urls, given.viewers, given.seconds))
        else:
            table = asyncio.run(measure_queues(urls, given.queues, given.jobs))
    Console().print(table)


if __name__ == "__main__":
    main()
