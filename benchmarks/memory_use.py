"""How many bytes a waiting job takes, beyond its payload: measured in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from subprocess import run

from benchmarks.scenarios import PAYLOAD, fill, requests
from dibs.storage.registry import open_storage


def resident() -> int:
    """Return the bytes this process has in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not tell how much memory a process uses")


async def _measure(jobs: int) -> float:
    async with open_storage("memory:") as storage:
        before = resident()
        for start in range(0, jobs, 10_000):
            # Made and dropped piece by piece: the requests are not what is measured.
            await fill(storage, "q", requests(10_000, prefix=f"job-{start}"))
        gc.collect()
        return (resident() - before) / jobs - len(PAYLOAD)


def bytes_per_job(jobs: int) -> float:
    """Return the bytes a waiting job takes in memory, beyond its payload."""
    done = run(
        [sys.executable, "-m", "benchmarks.memory_use", str(jobs)], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    print(asyncio.run(_measure(int(sys.argv[1]))))
