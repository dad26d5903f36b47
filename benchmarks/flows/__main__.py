"""Compare the flows of dibs with those of other systems: `python -m benchmarks.flows [NAME ...] [--json FILE]
[--quick]`.

Each round measures all systems in turn, so that changes of a shared machine affect all of them. A flow has N
nodes that run in parallel and a fan-in that runs after all of them; nodes/s counts both. Two worker processes
run the flows of each system. Then a worker of each system is killed again and again while it runs flows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define
from rich.console import Console

from benchmarks import report
from benchmarks.flows import table
from benchmarks.flows.measure import FULL, QUICK, Measurement
from benchmarks.flows.systems import SYSTEMS, System, start_servers
from benchmarks.flows.table import Results
from benchmarks.peers.environments import PeerUnavailable


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description=__doc__)
    parser.add_argument("names", nargs="*", help="measure only these systems")
    parser.add_argument("--kind", action="append", help="measure only on this kind of server")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each system (default: 3)")
    parser.add_argument(
        "--kills", type=int, default=10, help="rounds with a killed worker, for each system (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments of the kills (default: 1)")
    parser.add_argument("--quick", action="store_true", help="few flows: a trial, not a measurement")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--tables", type=Path, help="print the tables of such a file; measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    arguments = parser.parse_args(words)
    if not 0 <= arguments.kills <= 200:
        parser.error(f"--kills is {arguments.kills}; choose 0 to 200")
    return arguments


def select_systems(names: list[str], kinds: list[str] | None = None) -> list[System]:
    """Return the systems with these names; all systems if `names` is empty. Raise SystemExit."""
    unknown = set(names) - {system.name for system in SYSTEMS}
    if unknown:
        known = ", ".join(sorted({system.name for system in SYSTEMS}))
        raise SystemExit(f"unknown system {', '.join(sorted(unknown))}; choose from {known}")
    return [
        system
        for system in SYSTEMS
        if (not names or system.name in names) and (not kinds or system.kind in kinds)
    ]


def measured(name: str, measure: Callable[[], dict[str, Any]], console: Console) -> dict[str, Any]:
    """Return the figures, or the reason why there are none, and print a line."""
    try:
        figures = measure()
    except PeerUnavailable as reason:
        figures = {"not_run": str(reason)}
    console.print(f"{name}: {figures.get('not_run', 'measured')}", highlight=False)
    return figures


@define
class Comparison:
    """A run of all systems, one after the other in each round."""

    measurements: list[Measurement]
    results: Results
    #: The file of the results, written after each measurement.
    path: Path | None

    def measure_rounds(self, rounds: int, console: Console) -> None:
        for number in range(rounds):
            self.results.rounds.append({})
            for one in self.measurements:
                key = one.system.key
                found = measured(f"round {number + 1}: {key}", one.rates_and_handovers, console)
                self.results.rounds[-1][key] = found
                self.results.save(self.path)

    def count_kills(self, kills: int, seed: int, console: Console) -> None:
        for one in self.measurements if kills else ():
            key, count = one.system.key, partial(one.fan_ins_under_kills, kills, seed)
            self.results.kills[key] = measured(f"kills: {key}", count, console)
            self.results.save(self.path)


def run(arguments: argparse.Namespace) -> Results:
    """Measure the systems and return the results."""
    effort, console = QUICK if arguments.quick else FULL, Console(stderr=True)
    systems = select_systems(arguments.names, arguments.kind)
    with start_servers({system.kind for system in systems}) as (servers, versions):
        settings = {"rounds": arguments.rounds, "kills": arguments.kills, "quick": arguments.quick}
        results = Results.describe(versions, **settings)
        measurements = [Measurement(system, servers[system.kind], effort) for system in systems]
        comparison = Comparison(measurements, results, arguments.json)
        comparison.measure_rounds(arguments.rounds, console)
        comparison.count_kills(arguments.kills, arguments.seed, console)
    return results


def main() -> None:
    """Measure the systems, or read earlier results, and print the tables."""
    arguments = parse_arguments()
    results = Results.load(arguments.tables) if arguments.tables else run(arguments)
    show = table.show_markdown if arguments.markdown else table.show
    show(results, report.open_console())


if __name__ == "__main__":
    main()
