"""Compare dibs with other job queues: `python -m benchmarks.peers [NAME ...] [--rounds N] [--quick] [--json
FILE]`.

Each round measures the baselines and then all systems, so that changes of a shared machine affect all of
them: compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
from pathlib import Path
from typing import Any, Final

import attrs
from attrs import define, field
from rich.console import Console
from rich.progress import Progress

from benchmarks import report
from benchmarks.peers import baseline, table
from benchmarks.peers.backends import Backend, start_backends
from benchmarks.peers.environments import Environment, PeerUnavailable
from benchmarks.peers.measure import LATENCY_JOBS, Measurement, measure_peer
from benchmarks.peers.systems import PEERS, Peer

#: The environments of all peers, kept for the next run.
ENVIRONMENTS: Final = Path(".bench-peers")


@define
class Comparison:
    """The results of all rounds."""

    #: (kind, name) -> the measurements of all rounds.
    measurements: dict[tuple[str, str], list[Measurement]] = field(factory=dict)
    #: (kind, name) -> the reason why a peer cannot run.
    unavailable: dict[tuple[str, str], str] = field(factory=dict)
    #: The rates of the baselines in each round.
    baselines: list[dict[str, float]] = field(factory=list)

    def run_peer(self, peer: Peer, backend: Backend, *, quick: bool) -> None:
        """Measure a peer once. After a failure it is skipped in all later rounds."""
        key = (peer.kind, peer.name)
        if key in self.unavailable:
            return
        jobs, latency_jobs = (peer.jobs // 5, 50) if quick else (peer.jobs, LATENCY_JOBS)
        environment = Environment(ENVIRONMENTS, peer)
        try:
            environment.install()
            result = measure_peer(peer, environment, backend, jobs=jobs, latency_jobs=latency_jobs)
            self.measurements.setdefault(key, []).append(result)
        except PeerUnavailable as reason:
            self.measurements.pop(key, None)
            self.unavailable[key] = str(reason)

    def row(self, peer: Peer) -> dict[str, Any]:
        """Return the medians of a peer for the table."""
        key = (peer.kind, peer.name)
        return table.row(peer, self.measurements.get(key, []), self.unavailable.get(key, ""), self.baselines)


def compare(peers: list[Peer], by_kind: dict[str, Backend], *, rounds: int, quick: bool) -> Comparison:
    """Run all rounds."""
    comparison = Comparison()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(peers))
        for _ in range(rounds):
            comparison.baselines.append(asyncio.run(baseline.measure(by_kind)))
            for peer in peers:
                progress.update(task, advance=1, description=f"{peer.name} ({peer.kind})")
                comparison.run_peer(peer, by_kind[peer.kind], quick=quick)
    return comparison


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help="measure only these systems, and dibs")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each system (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    return parser.parse_args()


def select_peers(names: list[str]) -> list[Peer]:
    """Return the peers with these names and dibs; all peers if `names` is empty. Raises SystemExit."""
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        known = ", ".join(sorted({peer.name for peer in PEERS}))
        raise SystemExit(f"unknown system {', '.join(sorted(unknown))}; choose from {known}")
    return [peer for peer in PEERS if not names or peer.name in names or peer.runtime == "dibs"]


def main() -> None:
    """Measure all peers and print a table for each kind of server."""
    arguments = parse_arguments()
    peers = select_peers(arguments.names)
    with start_backends() as (by_kind, servers):
        comparison = compare(peers, by_kind, rounds=arguments.rounds, quick=arguments.quick)
    rows = [comparison.row(peer) for peer in peers]
    console = report.open_console()
    for kind in by_kind:
        table.show(kind, [row for row in rows if row["kind"] == kind], console)
    console.print(f"{servers}; {platform.python_implementation()} {platform.python_version()}", style="dim")
    document = {"rows": rows, "baselines": comparison.baselines, "measurements": _raw(comparison)}
    report.write_json(arguments.json, document)


def _raw(comparison: Comparison) -> dict[str, Any]:
    return {
        f"{kind}: {name}": [attrs.asdict(one) for one in results]
        for (kind, name), results in comparison.measurements.items()
    }


if __name__ == "__main__":
    main()
