"""Measure under other conditions: `python -m benchmarks.conditions [PART ...] [--quick] [--json FILE]`.

far: rates with 0, 1 and 2 ms of network delay. line: rates with 1,000 to 1,000,000 waiting jobs. start: ms of
`import dibs`, and until the first job of a worker. room: MiB of 10,000 waiting jobs. Compare the rows of one
part; do not compare different runs.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import report
from benchmarks.conditions import backlog, cold_start, footprint, network_delay
from benchmarks.peers.backends import start_backends
from benchmarks.storages import private_servers

PARTS: Final = {"far": "network delay", "line": "backlog", "start": "cold start", "room": "stored jobs"}


def measure(parts: list[str], *, quick: bool) -> dict[str, Any]:
    """Return the results by part."""
    results: dict[str, Any] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show_step(description: str) -> None:
            progress.update(task, description=description)

        if "far" in parts:
            with start_backends() as (by_kind, _):
                jobs = 4_000 if quick else 20_000
                results["far"] = network_delay.measure(by_kind, jobs=jobs, show_step=show_step)
        if "start" in parts:
            show_step("starting workers")
            results["start"] = cold_start.measure(3 if quick else 11)
        if {"line", "room"} & set(parts):
            with private_servers() as (urls, _):
                results |= asyncio.run(_measure_storages(urls, parts, quick=quick, show_step=show_step))
    return results


async def _measure_storages(
    urls: list[str], parts: list[str], *, quick: bool, show_step: Callable[[str], None]
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    if "line" in parts:
        lengths = [1_000, 10_000, 100_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
        storages = ["memory:", "file:NAME", *urls]
        seconds = 2 if quick else 10
        results["line"] = await backlog.measure(storages, lengths, seconds=seconds, show_step=show_step)
    if "room" in parts:
        show_step("filling storages")
        results["room"] = await footprint.measure(*urls)
    return results


def show(results: dict[str, Any], console: Console) -> None:
    """Print a table or a line for each part."""
    for part in ("far", "line"):
        if part in results:
            table = Table(title=PARTS[part])
            for heading in results[part][0]:
                table.add_column(heading, justify="left" if heading == "kind" else "right")
            for row in results[part]:
                table.add_row(*(_cell(value) for value in row.values()))
            console.print(table)
    if "start" in results:
        start = results["start"]
        console.print(
            f"import dibs: {start['import_ms']} ms; "
            f"from the start of dibs worker to its first job: {start['first_claim_ms']} ms"
        )
    if "room" in results:
        sizes = ", ".join(f"{kind} {mib} MiB" for kind, mib in results["room"].items())
        console.print(f"size of 10,000 waiting jobs: {sizes}")


def _cell(value: Any) -> str:
    if isinstance(value, float) and value > 100:
        return f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Measure the parts and print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conditions", description=__doc__)
    parts_help = ", ".join(f"{part} ({title})" for part, title in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS), help=parts_help)
    parser.add_argument("--quick", action="store_true", help="fewer jobs, a shorter backlog, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    results = measure(arguments.parts, quick=arguments.quick)
    show(results, report.open_console())
    report.write_json(arguments.json, results)


if __name__ == "__main__":
    main()
