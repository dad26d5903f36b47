"""The bare steps under a storage, without any of its promises, timed in the same rounds.

A yardstick takes the storage's URL, the jobs and how many at once, and returns how many a second it did.
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

Yardstick = Callable[[str, int, int], Awaitable[float]]


async def memory_put(url: str, jobs: int, batch: int) -> float:
    """Insert into a dict and push on a heap."""
    del url, batch
    known: dict[str, bytes] = {}
    line: list[tuple[int, int, str]] = []
    begun = time.perf_counter()
    for n in range(jobs):
        id = f"job-{n:09d}"
        known[id] = PAYLOAD
        heappush(line, (0, n, id))
    return jobs / (time.perf_counter() - begun)


async def memory_take(url: str, jobs: int, batch: int) -> float:
    """Pop from a heap and delete from a dict."""
    del url, batch
    known = {f"job-{n:09d}": PAYLOAD for n in range(jobs)}
    line = [(0, n, id) for n, id in enumerate(known)]
    begun = time.perf_counter()
    while line:
        del known[heappop(line)[2]]
    return jobs / (time.perf_counter() - begun)


def _files(jobs: int, batch: int, *, fsync: bool) -> float:
    """Write one file for each batch, of 60 bytes a job, and rename it into place."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        body = b"x" * 60 * batch
        begun = time.perf_counter()
        for n in range(0, jobs, batch):
            _write_and_rename(folder, n, body, fsync=fsync)
        return jobs / (time.perf_counter() - begun)


def _write_and_rename(folder: str, n: int, body: bytes, *, fsync: bool) -> None:
    descriptor = os.open(f"{folder}/new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, body)
    if fsync:
        os.fsync(descriptor)
    os.close(descriptor)
    os.rename(f"{folder}/new", f"{folder}/{n}")  # noqa: PTH104 - what is timed is the call
    if fsync:
        parent = os.open(folder, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)


async def file_step(url: str, jobs: int, batch: int) -> float:
    """One file a batch, without fsync."""
    del url
    return _files(jobs, batch, fsync=False)


async def file_step_synced(url: str, jobs: int, batch: int) -> float:
    """One file a batch, file and folder fsynced."""
    del url
    return _files(jobs, batch, fsync=True)


async def redis_put(url: str, jobs: int, batch: int) -> float:
    """One script call a job; the driver is loaded only now."""
    from benchmarks import server_yardsticks as bare  # noqa: PLC0415

    return await bare.redis_put(url, jobs, batch)


async def redis_take(url: str, jobs: int, batch: int) -> float:
    from benchmarks import server_yardsticks as bare  # noqa: PLC0415

    return await bare.redis_take(url, jobs, batch)


async def postgres_put(url: str, jobs: int, batch: int) -> float:
    """One statement a batch; the driver is loaded only now."""
    from benchmarks import server_yardsticks as bare  # noqa: PLC0415

    return await bare.postgres_put(url, jobs, batch)


async def postgres_take(url: str, jobs: int, batch: int) -> float:
    from benchmarks import server_yardsticks as bare  # noqa: PLC0415

    return await bare.postgres_take(url, jobs, batch)


#: For each kind of storage, what stands beside `put` and `take`, and what that is in words.
YARDSTICKS: Final[dict[str, tuple[Yardstick, Yardstick, str]]] = {
    "memory": (memory_put, memory_take, "dict insert + heap push; heap pop + dict delete"),
    "file": (file_step, file_step, "write + rename of one file"),
    "file, fsync": (file_step_synced, file_step_synced, "write + fsync + rename + fsync of the folder"),
    "redis": (
        redis_put,
        redis_take,
        "a pipeline of EVALSHA, one a job: HSET + ZADD; ZPOPMIN + HGETALL + ZADD",
    ),
    "postgresql": (postgres_put, postgres_take, "INSERT ... SELECT; DELETE ... SKIP LOCKED ... RETURNING"),
}


async def measure(kind: str, url: str, name: str, jobs: int) -> float | None:
    """Return the rate of a yardstick (`put, 100`), None where the kind of storage has none."""
    if kind not in YARDSTICKS:
        return None
    put, take, _ = YARDSTICKS[kind]
    step, _, batch = name.partition(", ")
    return await (put if step == "put" else take)(url, jobs, int(batch))
