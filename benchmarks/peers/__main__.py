"""Compare dibs with other job queues: `python -m benchmarks.peers [NAME ...] [--rounds N] [--quick] [--json
FILE]`.

Each round measures the baselines and then all systems, so that changes of a shared machine affect all of
them: compare the ratios. The far slower systems run in the first round only. The file of `--json` is written
after each system. A run that was stopped continues with the same file; `--fresh` begins again.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Final

from attrs import define
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import report
from benchmarks.peers.backends import Backend, measure_baselines, start_backends
from benchmarks.peers.environments import Environment, PeerUnavailable
from benchmarks.peers.measure import QUICK, Effort, Run
from benchmarks.peers.publish import table
from benchmarks.peers.publish.rows import rows
from benchmarks.peers.results import Results
from benchmarks.peers.systems import PEERS, Peer

#: The environments of all peers, kept for the next run.
ENVIRONMENTS: Final = Path(".bench-peers")
RESULTS: Final = ENVIRONMENTS / "results.json"


@define
class Comparison:
    """A run of all rounds, which skips what its file has."""

    results: Results
    path: Path
    by_kind: dict[str, Backend]
    effort: Effort

    def run(self, peers: list[Peer], rounds: int) -> None:
        """Measure all systems that the file does not have."""
        steps = [(number, peer) for number in range(rounds) for peer in peers if not (number and peer.once)]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("measuring", total=len(steps))
            for number, peer in steps:
                progress.update(task, description=f"round {number + 1}: {peer.key}")
                if self.run_peer(number, peer):
                    progress.console.print(self.line(number, peer), highlight=False)
                progress.advance(task)

    def run_peer(self, number: int, peer: Peer) -> bool:
        """Measure a system in one round, unless the file has it. Return True if it was measured."""
        this = self.results.round(number)
        if not this["baselines"]:
            this["baselines"] = asyncio.run(measure_baselines(self.by_kind))
        if "not_run" not in this["systems"].get(peer.key, {"not_run": ""}):
            return False
        environment = Environment(ENVIRONMENTS, peer)
        try:
            environment.install()
            run = Run(peer, environment, self.by_kind[peer.kind], self.effort)
            this["systems"][peer.key] = run.measure(first=number == 0)
        except PeerUnavailable as reason:
            this["systems"][peer.key] = {"not_run": str(reason)}
        self.results.save(self.path)
        return True

    def line(self, number: int, peer: Peer) -> str:
        """Return a line about a finished measurement."""
        figures = self.results.round(number)["systems"][peer.key]
        if "not_run" in figures:
            return f"{peer.key}: not measured: {figures['not_run']}"
        drain = f"drain of {figures['drain_jobs']:,} in {figures['drain_seconds']:.1f} s"
        if "enqueue_seconds" not in figures:
            return f"{peer.key}: {drain}"
        enqueue = f"enqueue of {figures['enqueue_jobs']:,} in {figures['enqueue_seconds']:.1f} s"
        return f"{peer.key}: {enqueue}, {drain}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help="measure only these systems, and dibs")
    parser.add_argument("--kind", action="append", help="measure only on this kind of storage")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each system (default: 2)")
    parser.add_argument(
        "--quick", action="store_true", help="a twentieth of the jobs: a trial, not a measurement"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, help=f"file of the results (default: {RESULTS})"
    )
    parser.add_argument("--fresh", action="store_true", help="measure what the file already has, too")
    return parser.parse_args()


def select_peers(names: list[str], kinds: list[str] | None = None) -> list[Peer]:
    """Return the peers with these names and dibs; all peers if `names` is empty. Raises SystemExit."""
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        known = ", ".join(sorted({peer.name for peer in PEERS}))
        raise SystemExit(f"unknown system {', '.join(sorted(unknown))}; choose from {known}")
    return [
        peer
        for peer in PEERS
        if (not names or peer.name in names or peer.runtime == "dibs") and (not kinds or peer.kind in kinds)
    ]


def main() -> None:
    """Measure all peers and print the tables."""
    arguments = parse_arguments()
    peers = select_peers(arguments.names, arguments.kind)
    results = Results() if arguments.fresh else Results.load(arguments.json)
    if results.about.get("quick", arguments.quick) != arguments.quick:
        raise SystemExit(f"{arguments.json} has results with and without --quick; begin again with --fresh")
    with start_backends() as (by_kind, servers):
        results.describe(servers, rounds=arguments.rounds, quick=arguments.quick)
        effort = QUICK if arguments.quick else Effort()
        Comparison(results, arguments.json, by_kind, effort).run(peers, arguments.rounds)
    table.show(rows(results), report.open_console())


if __name__ == "__main__":
    main()
