"""Run the benchmarks: `python -m benchmarks [URL ...] [--servers] [--quick] [--rounds N] [--json FILE]`.

NAME in a URL stands for a new, empty storage. Each round measures every scenario and its baseline, because
the speed of a shared machine changes by the minute: compare the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import baselines, memory_use, report
from benchmarks.allocations import measure_allocations
from benchmarks.client_calls import round_trips
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.storages import empty_storage, private_servers

ROUND_TRIP: Final = "round trip"
#: Name of a scenario -> jobs a second in each round; ROUND_TRIP -> ms of each round trip.
Rates = dict[str, list[float]]


def kind_of(url: str) -> str:
    """Return the kind of a storage, a key of `BASELINES`."""
    scheme = url.partition(":")[0]
    return "file, fsync" if scheme == "file" and "fsync=1" in url else scheme


async def measure(urls: list[str], *, rounds: int, quick: bool) -> dict[str, Rates]:
    """Return the rates of all scenarios and baselines by URL, with a value for each round."""
    rates: dict[str, Rates] = {url: {} for url in urls}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(urls) * (len(SCENARIOS) + 1))
        for _ in range(rounds):
            for scenario in SCENARIOS:
                for url in urls:
                    await _measure_pair(rates[url], url, scenario, quick=quick)
                    progress.advance(task)
            for url in urls:
                async with empty_storage(url) as storage:
                    times = await round_trips(storage, 30 if quick else 300)
                rates[url].setdefault(ROUND_TRIP, []).extend(times)
                progress.advance(task)
    return rates


async def _measure_pair(rates: Rates, url: str, scenario: Scenario, *, quick: bool) -> None:
    jobs = scenario.quick_jobs if quick else scenario.jobs
    baseline = await baselines.measure(kind_of(url), url, scenario.baseline, jobs)
    async with empty_storage(url) as storage:
        rates.setdefault(scenario.name, []).append(await scenario.run(storage, jobs))
    if baseline is not None:
        rates.setdefault(f"baseline: {scenario.name}", []).append(baseline)


def rate_rows(rates: dict[str, Rates]) -> list[dict[str, Any]]:
    """Return a row for each storage and scenario: medians, and the median of the ratios within a round."""
    return [
        _rate_row(
            kind_of(url), scenario.name, by_name[scenario.name], by_name.get(f"baseline: {scenario.name}")
        )
        for url, by_name in rates.items()
        for scenario in SCENARIOS
    ]


def _rate_row(kind: str, scenario: str, rates: list[float], baseline: list[float] | None) -> dict[str, Any]:
    ratios = [rate / base for rate, base in zip(rates, baseline, strict=True)] if baseline else None
    return {
        "storage": kind,
        "scenario": scenario,
        "jobs_per_second": round(median(rates)),
        "baseline": round(median(baseline)) if baseline else None,
        "ratio": round(median(ratios), 3) if ratios else None,
    }


def round_trip_rows(rates: dict[str, Rates]) -> list[dict[str, Any]]:
    """Return p50 and p99 of the round trips in ms, by storage."""
    rows = []
    for url, by_name in rates.items():
        percentiles = quantiles(by_name[ROUND_TRIP], n=100)
        rows.append(
            {
                "storage": kind_of(url),
                "p50_ms": round(percentiles[49], 2),
                "p99_ms": round(percentiles[98], 2),
            }
        )
    return rows


def show_rates(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table of rates, and a line that describes each baseline."""
    table = Table(title=f"jobs a second; {platform.python_implementation()} {platform.python_version()}")
    for column in ("storage", "scenario", "jobs/s", "baseline/s", "ratio"):
        table.add_column(column, justify="left" if column in ("storage", "scenario") else "right")
    for row in rows:
        baseline = f"{row['baseline']:,}" if row["baseline"] else "none"
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "-"
        table.add_row(row["storage"], row["scenario"], f"{row['jobs_per_second']:,}", baseline, ratio)
    console.print(table)
    for kind, (_, _, description) in baselines.BASELINES.items():
        console.print(f"baseline of {kind}: {description}", style="dim")


def show_round_trips(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table of round trips, with an idle worker in this process."""
    table = Table(title="round trip in ms")
    for column in ("storage", "p50", "p99"):
        table.add_column(column, justify="left" if column == "storage" else "right")
    for row in rows:
        table.add_row(row["storage"], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}")
    console.print(table)


async def allocation_rows(urls: list[str]) -> list[dict[str, Any]]:
    """Return the allocations for each job, by storage and verb."""
    rows = []
    for url in urls:
        async with empty_storage(url) as storage:
            rows += [{"storage": kind_of(url), **row} for row in await measure_allocations(storage)]
    return rows


def show_allocations(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table of allocations."""
    table = Table(title="allocations of this process for each job, with 100 jobs a call")
    for column in ("storage", "verb", "blocks held with the result", "peak bytes"):
        table.add_column(column, justify="left" if column in ("storage", "verb") else "right")
    for row in rows:
        table.add_row(row["storage"], row["verb"], f"{row['blocks_held']:.1f}", f"{row['peak_bytes']:,}")
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    defaults = ["memory:", "file:NAME", "file:NAME?fsync=1"]
    parser.add_argument("urls", nargs="*", default=defaults, help=f"storages (default: {' '.join(defaults)})")
    parser.add_argument(
        "--servers", action="store_true", help="start a Redis and a Postgres and measure them, too"
    )
    parser.add_argument("--quick", action="store_true", help="about a tenth of the jobs")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each scenario (default: 3)")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    return parser.parse_args()


def main() -> None:
    """Measure all storages and print the tables."""
    options = parse_arguments()
    console = report.open_console()
    with ExitStack() as stack:
        server_urls, servers = stack.enter_context(private_servers()) if options.servers else ([], "")
        urls = [*options.urls, *server_urls]
        results = asyncio.run(measure(urls, rounds=options.rounds, quick=options.quick))
        allocations = asyncio.run(allocation_rows(urls))
    rates, times = rate_rows(results), round_trip_rows(results)
    show_rates(rates, console)
    console.print(servers, style="dim")
    show_round_trips(times, console)
    show_allocations(allocations, console)
    jobs = 100_000 if options.quick else 1_000_000
    memory = memory_use.bytes_per_job(jobs)
    console.print(
        f"memory: {memory:.0f} bytes for each waiting job in addition to its payload, at {jobs:,} jobs"
    )
    document = {
        "rates": rates,
        "round_trips": times,
        "bytes_per_waiting_job": memory,
        "allocations": allocations,
    }
    report.write_json(options.json, document)


if __name__ == "__main__":
    main()
