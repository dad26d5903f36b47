"""How long the history checker takes: `python -m benchmarks.check_history [--steps 1000000] [--keep FILE]`.

Clients take turns on a memory storage; each call is said to have lasted while the others' went on, a few of
the answers are lost, and all of it is written to a file. The checker reads the file in a process of its own,
which tells its CPU seconds and its largest resident size. The rates of the yardstick, the same file read as
plain JSON, say how fast the machine is.
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
from dibs_conformance.history import Step, check, read_file, write_steps
from dibs_conformance.history.recorder import Recorder

QUEUE: Final = "q"
#: Half of the enqueues go to a few ids that contend, the rest to new ones.
HOT: Final = [f"hot-{n}" for n in range(50)]
CLIENTS: Final = 8
BATCH: Final = 50
LEASE: Final = 3_600_000
NOW: Final = 1_767_225_600_000


class Moments:
    """A clock that makes calls overlap: an answer comes somewhat later than the next calls are sent."""

    def __init__(self) -> None:
        self._ticks = 0

    def __call__(self) -> int:
        self._ticks += 1
        # Odd ticks send, even ones answer: an answer takes as long as three more calls.
        return self._ticks * 10 + (0 if self._ticks % 2 else 60)


async def record(steps: int, file: IO[bytes], random: Random) -> int:
    """Write at least so many steps, and return how many."""
    written = 0

    def write(step: Step) -> None:
        nonlocal written
        written += 1
        file.writelines(write_steps([step]))

    async with open_storage("memory:benchmark", "manual") as storage:
        recorder = Recorder(write, Moments())
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
    """Enqueue a batch, and return how many of its ids are new."""
    ids = [random.choice(HOT) if random.random() < 0.5 else f"job-{fresh + n}" for n in range(BATCH)]
    data = JobData(payload=str(now).encode())
    await storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids], now=now)
    return BATCH


async def renew(storage: Storage, lease: str, now: int) -> None:
    await storage.renew([QUEUE], lease, LEASE, now=now)


async def settle_and_claim(
    storage: Storage, lease: str, held: list[tuple[str, int]], random: Random, now: int
) -> list[tuple[str, int]]:
    """Settle what a client holds, and take more."""
    hows: tuple[SettleAction, ...] = (
        *(Complete(result=b"1"),) * 6,
        RetryLater(),
        Release(),
        Fail(error=Error(type="Oops"), handled=True),
    )
    settlements = [Settlement(id=id, fence=fence, action=random.choice(hows)) for id, fence in held]
    turned = await storage.settle_and_claim(QUEUE, settlements, lease, BATCH, now=now)
    return [(job.id, job.run.fence) for job in turned.claim.jobs if job.run]


def figures(file: Path) -> dict[str, float]:
    """Check a file in this process, and tell what it took."""
    began = time.process_time()
    checked = check(read_file(file))
    seconds = time.process_time() - began
    began = time.process_time()
    lines = sum(1 for _ in plain(file))
    return {
        "steps": checked.steps,
        "ids": checked.ids,
        "runs": checked.runs,
        "broken": len(checked.failures),
        "cpu_seconds": round(seconds, 1),
        "steps_a_second": round(checked.steps / seconds),
        "mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "times_plain_json": round(seconds / (time.process_time() - began) * lines / checked.steps, 1),
    }


def plain(file: Path) -> Iterator[object]:
    """The yardstick: each line as JSON, and forgotten."""
    with file.open("rb") as lines:
        yield from map(json.loads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="write the history here, and leave it")
    parser.add_argument("--check", type=Path, help="check this file in this process")
    options = parser.parse_args()
    if options.check:
        print(json.dumps(figures(options.check)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "history.jsonl"
        with path.open("wb") as file:
            asyncio.run(record(options.steps, file, Random(1)))
        subprocess.run([sys.executable, "-m", "benchmarks.check_history", "--check", path], check=True)


if __name__ == "__main__":
    main()
