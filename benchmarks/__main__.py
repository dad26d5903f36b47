"""Run the benchmarks: `python -m benchmarks [URL ...] [--servers] [--quick] [--rounds N] [--json FILE]`.

Every scenario and its yardstick take turns within each round, because a shared machine changes by the
minute: read the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import memory_use, yardsticks
from benchmarks.allocations import allocations
from benchmarks.places import empty_place
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.servers import private_servers
from benchmarks.through_the_client import round_trips
from dibs.cli import output

ROUND_TRIP: Final = "round trip"
Rates = dict[str, list[float]]


def kind_of(url: str) -> str:
    """Return which yardsticks a storage is held against."""
    scheme = url.partition(":")[0]
    return "file, fsync" if scheme == "file" and "fsync=1" in url else scheme


async def measure(urls: list[str], *, rounds: int, quick: bool) -> dict[str, Rates]:
    """Return for each storage and scenario the rates, and those of its yardstick, of every round."""
    rates: dict[str, Rates] = {url: {} for url in urls}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=rounds * len(urls) * (len(SCENARIOS) + 1))
        for _ in range(rounds):
            for scenario in SCENARIOS:
                for url in urls:
                    await _measure_pair(rates[url], url, scenario, quick=quick)
                    progress.advance(bar)
            for url in urls:
                async with empty_place(url) as storage:
                    rates[url].setdefault(ROUND_TRIP, []).extend(
                        await round_trips(storage, 30 if quick else 300)
                    )
                progress.advance(bar)
    return rates


async def _measure_pair(rates: Rates, url: str, scenario: Scenario, *, quick: bool) -> None:
    jobs = scenario.quick if quick else scenario.jobs
    bare = await yardsticks.measure(kind_of(url), url, scenario.yardstick, jobs)
    async with empty_place(url) as storage:
        rates.setdefault(scenario.name, []).append(await scenario.run(storage, jobs))
    if bare is not None:
        rates.setdefault(f"bare: {scenario.name}", []).append(bare)


def rows(rates: dict[str, Rates]) -> list[dict[str, Any]]:
    """Return the medians, and the ratio to the yardstick within the round."""
    found = []
    for url, by_name in rates.items():
        for scenario in SCENARIOS:
            ours, bare = by_name[scenario.name], by_name.get(f"bare: {scenario.name}")
            found.append(
                {
                    "storage": kind_of(url),
                    "scenario": scenario.name,
                    "jobs_per_second": round(median(ours)),
                    "yardstick": round(median(bare)) if bare else None,
                    "ratio": round(median(o / b for o, b in zip(ours, bare, strict=True)), 3)
                    if bare
                    else None,
                }
            )
    return found


def waits(rates: dict[str, Rates]) -> list[dict[str, Any]]:
    """Return how many ms half of the round trips took at most, and 99 in a hundred."""
    found = []
    for url, by_name in rates.items():
        cuts = quantiles(by_name[ROUND_TRIP], n=100)
        found.append({"storage": kind_of(url), "p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)})
    return found


def show(found: list[dict[str, Any]], console: Console) -> None:
    """Print the table for people."""
    table = Table(title=f"jobs a second; {platform.python_implementation()} {platform.python_version()}")
    for column in ("storage", "scenario", "jobs/s", "yardstick/s", "ratio"):
        table.add_column(column, justify="left" if column in ("storage", "scenario") else "right")
    for row in found:
        bare = f"{row['yardstick']:,}" if row["yardstick"] else "none"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        table.add_row(row["storage"], row["scenario"], f"{row['jobs_per_second']:,}", bare, ratio)
    console.print(table)
    for kind, (_, _, words) in yardsticks.YARDSTICKS.items():
        console.print(f"yardstick of {kind}: {words}", style="dim")


def show_waits(found: list[dict[str, Any]], console: Console) -> None:
    """Print the round trips for people."""
    table = Table(title="ms from enqueue to result, worker idle and in the same process")
    for column in ("storage", "p50", "p99"):
        table.add_column(column, justify="left" if column == "storage" else "right")
    for row in found:
        table.add_row(row["storage"], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}")
    console.print(table)


async def allocated(urls: list[str]) -> list[dict[str, Any]]:
    """Return what each verb of each storage allocates for a job."""
    found = []
    for url in urls:
        async with empty_place(url) as storage:
            found += [{"storage": kind_of(url), **row} for row in await allocations(storage)]
    return found


def show_allocations(found: list[dict[str, Any]], console: Console) -> None:
    """Print the allocations for people."""
    table = Table(title="allocated here for a job, 100 a call")
    for column in ("storage", "verb", "blocks while the answer is held", "bytes at most"):
        table.add_column(column, justify="left" if column in ("storage", "verb") else "right")
    for row in found:
        table.add_row(row["storage"], row["verb"], f"{row['blocks_held']:.1f}", f"{row['peak_bytes']:,}")
    console.print(table)


def read_words() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("urls", nargs="*", default=["memory:", "file:PLACE", "file:PLACE?fsync=1"])
    parser.add_argument("--servers", action="store_true", help="a Redis and a Postgres of their own as well")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    return parser.parse_args()


def main() -> None:
    """Measure, print."""
    words = read_words()
    console = output.console()
    with ExitStack() as stack:
        urls, told = stack.enter_context(private_servers()) if words.servers else ([], "")
        urls = [*words.urls, *urls]
        rates = asyncio.run(measure(urls, rounds=words.rounds, quick=words.quick))
        made = asyncio.run(allocated(urls))
    found, trips = rows(rates), waits(rates)
    show(found, console)
    console.print(told, style="dim")
    show_waits(trips, console)
    show_allocations(made, console)
    jobs = 100_000 if words.quick else 1_000_000
    used = memory_use.bytes_per_job(jobs)
    console.print(f"memory: {used:.0f} bytes a waiting job beyond its payload, at {jobs:,} jobs")
    if words.json:
        kept = {"rates": found, "round_trips": trips, "bytes_per_waiting_job": used, "allocations": made}
        words.json.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
