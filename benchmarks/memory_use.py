"""The memory of a waiting job in addition to its payload, measured in a new process."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path
from subprocess import run

from benchmarks.scenarios import PAYLOAD, fill, requests
from dibs.storage.registry import open_storage


def resident_bytes() -> int:
    """Return the resident size of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no line VmRSS: this benchmark needs Linux")


async def _measure(jobs: int) -> float:
    async with open_storage("memory:") as storage:
        before = resident_bytes()
        for start in range(0, jobs, 10_000):
            # In pieces, so that the memory of the requests themselves stays small.
            await fill(storage, "q", requests(10_000, prefix=f"job-{start}"))
        gc.collect()
        return (resident_bytes() - before) / jobs - len(PAYLOAD)


def bytes_per_job(jobs: int) -> float:
    """Return the bytes of a waiting job in addition to its payload."""
    process = run(
        [sys.executable, "-m", "benchmarks.memory_use", str(jobs)], check=True, capture_output=True, text=True
    )
    return float(process.stdout)


if __name__ == "__main__":
    print(asyncio.run(_measure(int(sys.argv[1]))))
