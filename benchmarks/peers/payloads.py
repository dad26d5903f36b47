"""Compare queues whose jobs have large arguments: `python -m benchmarks.peers.payloads [NAME ...]`.

Each job carries a text of 10 KB or 1 MB, which compresses badly. In each round, the systems of a
storage run in turn: a bulk enqueue, single enqueues one after the other, and a drain by a worker of one
process. The table has the medians of the rounds.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import product
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.__main__ import ENVIRONMENTS, select_peers
from benchmarks.peers.backends import start_backends
from benchmarks.peers.environments import Environment, PeerUnavailable
from benchmarks.peers.measure import Effort, Run

#: The bytes of the text of a job -> the jobs that wait when a drain begins, a gigabyte and more.
JOBS: Final = {10_000: 100_000, 1_000_000: 1_500}
KINDS: Final = ("redis", "postgresql", "file")
EFFORT: Final = Effort(single_ms=2_000)
#: The rates of a measurement: bulk enqueue, single enqueue and drain, jobs/s; server and worker, us a job.
Rates = tuple[float, float, float, float, float]


def measure(run: Run, size: int, jobs: int) -> Rates:
    """Return the rates of one system with arguments of `size` bytes. Raises PeerUnavailable."""
    bulk = jobs / run.step("enqueue", jobs, run.prepare(PEER_PAYLOAD=str(size)))["seconds"]
    single = run.step("single", run.effort.single_ms, run.prepare(PEER_PAYLOAD=str(size)))["per_second"]
    figures = run.drain(run.prepare(PEER_PAYLOAD=str(size)), jobs)
    server = figures["drain_server"]
    return (
        bulk,
        single,
        jobs / figures["drain_seconds"],
        float("nan") if server is None else server["cpu_us"],
        figures["worker_us"],
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.payloads", description=__doc__)
    parser.add_argument("names", nargs="*", help="measure only these systems, and dibs")
    parser.add_argument("--kind", action="append", choices=KINDS, help="measure only on this storage")
    parser.add_argument("--size", action="append", type=int, choices=JOBS, help="measure only these bytes")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each system (default: 2)")
    options = parser.parse_args()
    console = Console(width=100)
    rates: dict[tuple[str, int, str], list[Rates]] = defaultdict(list)
    with start_backends() as (by_kind, _):
        # The rounds are inside, so that the systems of a storage run in turn.
        for kind, size, _ in product(options.kind or KINDS, options.size or JOBS, range(options.rounds)):
            for peer in select_peers(options.names, [kind]):
                if peer.behind:
                    continue
                environment = Environment(ENVIRONMENTS, peer)
                try:
                    environment.install()
                    found = measure(Run(peer, environment, by_kind[kind], EFFORT), size, JOBS[size])
                except PeerUnavailable as reason:
                    console.print(f"{peer.key}: stopped: {reason}", highlight=False)
                    continue
                rates[kind, size, peer.name].append(found)
                console.print(peer.key, size, *map(round, found[:3]), highlight=False)
    console.print(_table(rates))


def _table(rates: dict[tuple[str, int, str], list[Rates]]) -> Table:
    table = Table("storage", "bytes", "system", "bulk/s", "single/s", "drain/s", "server us", "worker us")
    for (kind, size, name), rounds in rates.items():
        medians = (f"{median(column):,.0f}" for column in zip(*rounds, strict=True))
        table.add_row(kind, f"{size:,}", name, *medians)
    return table


if __name__ == "__main__":
    main()
