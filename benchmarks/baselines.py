"""The baselines of the scenarios: the least work for a job on each kind of storage, without any guarantees.

A baseline is called with the URL of the storage, the jobs and the jobs of one call, and returns jobs a
second.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

from benchmarks.scenarios import PAYLOAD

Baseline = Callable[[str, int, int], Awaitable[float]]


async def memory_put(url: str, jobs: int, batch: int) -> float:
    """Insert into a dict and push on a heap."""
    del url, batch
    payloads: dict[str, bytes] = {}
    heap: list[tuple[int, int, str]] = []
    started = time.perf_counter()
    for n in range(jobs):
        id = f"job-{n:09d}"
        payloads[id] = PAYLOAD
        heappush(heap, (0, n, id))
    return jobs / (time.perf_counter() - started)


async def memory_take(url: str, jobs: int, batch: int) -> float:
    """Pop from a heap and delete from a dict."""
    del url, batch
    payloads = {f"job-{n:09d}": PAYLOAD for n in range(jobs)}
    heap = [(0, n, id) for n, id in enumerate(payloads)]
    started = time.perf_counter()
    while heap:
        del payloads[heappop(heap)[2]]
    return jobs / (time.perf_counter() - started)


def _files(jobs: int, batch: int, *, fsync: bool) -> float:
    """Write one file for each batch, with 60 bytes a job, and rename it."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        body = b"x" * 60 * batch
        started = time.perf_counter()
        for n in range(0, jobs, batch):
            _write_and_rename(folder, n, body, fsync=fsync)
        return jobs / (time.perf_counter() - started)


def _write_and_rename(folder: str, n: int, body: bytes, *, fsync: bool) -> None:
    descriptor = os.open(f"{folder}/new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, body)
    if fsync:
        os.fsync(descriptor)
    os.close(descriptor)
    os.rename(f"{folder}/new", f"{folder}/{n}")  # noqa: PTH104 - measures this call without pathlib
    if fsync:
        parent = os.open(folder, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)


async def file_write(url: str, jobs: int, batch: int) -> float:
    """Write one file a batch without fsync."""
    del url
    return _files(jobs, batch, fsync=False)


async def file_write_fsync(url: str, jobs: int, batch: int) -> float:
    """Write one file a batch, with fsync of file and folder."""
    del url
    return _files(jobs, batch, fsync=True)


async def redis_put(url: str, jobs: int, batch: int) -> float:
    """Call one script a job. The import is here because the other baselines need no driver."""
    from benchmarks import server_baselines  # noqa: PLC0415

    return await server_baselines.redis_put(url, jobs, batch)


async def redis_take(url: str, jobs: int, batch: int) -> float:
    from benchmarks import server_baselines  # noqa: PLC0415

    return await server_baselines.redis_take(url, jobs, batch)


async def postgres_put(url: str, jobs: int, batch: int) -> float:
    """Execute one statement a batch. The import is here because the other baselines need no driver."""
    from benchmarks import server_baselines  # noqa: PLC0415

    return await server_baselines.postgres_put(url, jobs, batch)


async def postgres_take(url: str, jobs: int, batch: int) -> float:
    from benchmarks import server_baselines  # noqa: PLC0415

    return await server_baselines.postgres_take(url, jobs, batch)


#: Kind of storage -> the baselines of `put` and `take`, and their description.
BASELINES: Final[dict[str, tuple[Baseline, Baseline, str]]] = {
    "memory": (memory_put, memory_take, "dict insert + heap push; heap pop + dict delete"),
    "file": (file_write, file_write, "write + rename of one file"),
    "file, fsync": (file_write_fsync, file_write_fsync, "write + fsync + rename + fsync of the folder"),
    "redis": (
        redis_put,
        redis_take,
        "a pipeline of EVALSHA, one a job: HSET + ZADD; ZPOPMIN + HGETALL + ZADD",
    ),
    "postgresql": (postgres_put, postgres_take, "INSERT ... SELECT; DELETE ... SKIP LOCKED ... RETURNING"),
}


async def measure(kind: str, url: str, name: str, jobs: int) -> float | None:
    """Return the rate of a baseline such as "put, 100", or None if the kind of storage has no baseline."""
    if kind not in BASELINES:
        return None
    put, take, _ = BASELINES[kind]
    step, _, batch = name.partition(", ")
    return await (put if step == "put" else take)(url, jobs, int(batch))
