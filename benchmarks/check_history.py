"""Measure the history checker: `python -m benchmarks.check_history [--steps 1000000] [--keep FILE]`.

Random clients call a memory storage one after another. The recorder writes each call to a file, with times
that overlap with other calls. The checker reads the file in a new process, which prints its CPU seconds and
its largest resident size. The baseline reads the same file as plain JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, Final

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Fail, Release, RetryLater, SettleAction, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs_conformance.history import RecordedStep, check, read_file, write_steps
from dibs_conformance.history.recorder import Recorder

QUEUE: Final = "q"
#: Half of the enqueues use one of these ids, the others a new id.
HOT: Final = [f"hot-{n}" for n in range(50)]
CLIENTS: Final = 8
BATCH: Final = 50
LEASE: Final = 3_600_000
NOW: Final = 1_767_225_600_000


class OverlapClock:
    """A clock that makes calls overlap: a reply arrives later than the next three calls are sent."""

    def __init__(self) -> None:
        self._ticks = 0

    def __call__(self) -> int:
        self._ticks += 1
        # The recorder reads the clock for the call (odd ticks), then for its reply (even ticks).
        return self._ticks * 10 + (0 if self._ticks % 2 else 60)


async def record(steps: int, file: IO[bytes], random: Random) -> int:
    """Write at least `steps` steps to `file`, and return their number."""
    written = 0

    def write(step: RecordedStep) -> None:
        nonlocal written
        written += 1
        file.writelines(write_steps([step]))

    async with open_storage("memory:benchmark", "manual") as storage:
        recorder = Recorder(write, OverlapClock())
        clients = [recorder.wrap(storage, f"client-{n}") for n in range(CLIENTS)]
        leases = [
            (await client.grant([QUEUE], LEASE, f"client-{n}", now=NOW)).lease
            for n, client in enumerate(clients)
        ]
        now, fresh = NOW, 0
        held: list[list[tuple[str, int]]] = [[] for _ in clients]
        while written < steps:
            number = random.randrange(CLIENTS)
            now += 1
            fresh += await enqueue(clients[number], random, fresh, now)
            await renew(clients[number], leases[number], now)
            held[number] = await settle_and_claim(clients[number], leases[number], held[number], random, now)
    return written


async def enqueue(storage: Storage, random: Random, fresh: int, now: int) -> int:
    """Enqueue a batch, and return the number by which `fresh` grows."""
    ids = [random.choice(HOT) if random.random() < 0.5 else f"job-{fresh + n}" for n in range(BATCH)]
    data = JobData(payload=str(now).encode())
    await storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids], now=now)
    return BATCH


async def renew(storage: Storage, lease: str, now: int) -> None:
    await storage.renew([QUEUE], lease, LEASE, now=now)


async def settle_and_claim(
    storage: Storage, lease: str, held: list[tuple[str, int]], random: Random, now: int
) -> list[tuple[str, int]]:
    """Settle the runs that a client holds, and claim more. Return the (id, fence) of the new runs."""
    actions: tuple[SettleAction, ...] = (
        *(Complete(result=b"1"),) * 6,
        RetryLater(),
        Release(),
        Fail(error=Error(type="Oops")),
    )
    settlements = [Settlement(id=id, fence=fence, action=random.choice(actions)) for id, fence in held]
    result = await storage.settle_and_claim(QUEUE, settlements, lease, BATCH, now=now)
    return [(job.id, job.run.fence) for job in result.claim.jobs if job.run]


def measure_check(file: Path) -> dict[str, float]:
    """Check a file in this process, and return sizes, CPU seconds and the ratio to the baseline."""
    started = time.process_time()
    checked = check(read_file(file))
    seconds = time.process_time() - started
    started = time.process_time()
    lines = sum(1 for _ in baseline(file))
    return {
        "steps": checked.steps,
        "ids": checked.ids,
        "runs": checked.runs,
        "broken": len(checked.failures),
        "cpu_seconds": round(seconds, 1),
        "steps_a_second": round(checked.steps / seconds),
        "mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "times_plain_json": round(seconds / (time.process_time() - started) * lines / checked.steps, 1),
    }


def baseline(file: Path) -> Iterator[object]:
    """Yield each line as plain JSON."""
    with file.open("rb") as lines:
        yield from map(json.loads, lines)


def main() -> None:
    """Record a history, then check it in a new process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="recorded calls")
    parser.add_argument("--keep", type=Path, help="write the history to this file and keep it")
    parser.add_argument("--check", type=Path, help="only check this file, in this process")
    options = parser.parse_args()
    if options.check:
        print(json.dumps(measure_check(options.check)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "history.jsonl"
        with path.open("wb") as file:
            asyncio.run(record(options.steps, file, Random(1)))
        subprocess.run([sys.executable, "-m", "benchmarks.check_history", "--check", path], check=True)


if __name__ == "__main__":
    main()
