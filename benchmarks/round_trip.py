"""How long a caller waits for a result: `python -m benchmarks.round_trip [URL ...] [--servers] [--jobs N]`.

One job after the other through the client, the worker idle, in the same process and on the same event loop.
Beside each stands the yardstick: one bare step of the same server a call, see benchmarks.server_yardsticks.
A round trip waits for three answers that write (enqueue, claim, settle) and one that reads. On a shared
machine read the ratio, and the best tenth: what a caller waits when nobody else wants the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import ExitStack
from statistics import quantiles
from typing import Any, Final

from benchmarks import yardsticks
from benchmarks.__main__ import kind_of
from benchmarks.places import empty_place
from benchmarks.servers import private_servers
from benchmarks.through_the_client import WARM_UP, round_trips

#: Steps of the yardstick in a round.
BARE: Final = 200


async def measure(url: str, jobs: int, rounds: int) -> dict[str, Any]:
    """Return ms at p10, p50, p99 and of the yardstick, their ratio, and the CPU of this process, each."""
    took: list[float] = []
    bare: list[float] = []
    used = 0.0
    for _ in range(rounds):
        rate = await yardsticks.measure(kind_of(url), url, "put, 1", BARE)
        bare += [1000 / rate] if rate else []
        async with empty_place(url) as storage:
            begun = time.process_time()
            took += await round_trips(storage, jobs)
            used += time.process_time() - begun
    cuts = quantiles(took, n=100)
    step = sorted(bare)[len(bare) // 2] if bare else None
    return {
        "storage": kind_of(url),
        "p10_ms": round(cuts[9], 2),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
        "bare_step_ms": round(step, 3) if step else None,
        "steps": round(cuts[49] / step, 1) if step else None,
        "cpu_ms": round(used * 1000 / rounds / (jobs + WARM_UP), 2),
    }


async def measure_all(urls: list[str], jobs: int, rounds: int) -> None:
    """Print a line of JSON for each place."""
    for url in urls:
        print(json.dumps(await measure(url, jobs, rounds)), flush=True)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.round_trip", description=__doc__)
    parser.add_argument("urls", nargs="*", default=["memory:"])
    parser.add_argument("--servers", action="store_true", help="a Redis and a Postgres of their own as well")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    with ExitStack() as stack:
        urls, told = stack.enter_context(private_servers()) if words.servers else ([], "")
        asyncio.run(measure_all([*words.urls, *urls], words.jobs, words.rounds))
        print(told)


if __name__ == "__main__":
    main()
