"""Measure under changed conditions: `python -m benchmarks.conditions [PART ...] [--quick] [--json FILE]`.

The parts: far (a server 0, 1, 2 ms further away), line (1,000 to 1,000,000 waiting), start (import, first
job of a worker), room (MiB for 10,000 waiting). Within a part, rows are to be compared; between runs, not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.conditions import far, long_line, room, start_up
from benchmarks.peers.grounds import grounds
from benchmarks.servers import private_servers
from dibs.cli import output

PARTS: Final = ("far", "line", "start", "room")


def measure(parts: list[str], *, quick: bool) -> dict[str, Any]:
    """Return what each part found."""
    found: dict[str, Any] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def told(what: str) -> None:
            progress.update(task, description=what)

        if "far" in parts:
            with grounds() as (by_kind, _):
                found["far"] = far.measure(by_kind, jobs=4_000 if quick else 20_000, told=told)
        if "start" in parts:
            told("starting workers")
            found["start"] = start_up.measure(3 if quick else 11)
        if {"line", "room"} & set(parts):
            with private_servers() as (urls, _):
                found |= asyncio.run(_on_storages(urls, parts, quick=quick, told=told))
    return found


async def _on_storages(urls: list[str], parts: list[str], *, quick: bool, told: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "line" in parts:
        lengths = [1_000, 10_000, 100_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
        storages = ["memory:", "file:PLACE", *urls]
        found["line"] = await long_line.measure(storages, lengths, seconds=2 if quick else 10, told=told)
    if "room" in parts:
        told("filling storages")
        found["room"] = await room.measure(*urls)
    return found


def show(found: dict[str, Any], console: Console) -> None:
    """Print a table for each part."""
    for part in ("far", "line"):
        if part in found:
            table = Table(title=part)
            for heading in found[part][0]:
                table.add_column(heading, justify="left" if heading == "kind" else "right")
            for row in found[part]:
                table.add_row(*(_cell(value) for value in row.values()))
            console.print(table)
    if "start" in found:
        told = found["start"]
        console.print(
            f"import dibs: {told['import_ms']} ms; dibs worker to its first job: {told['first_claim_ms']} ms"
        )
    if "room" in found:
        console.print(
            "10,000 waiting: " + ", ".join(f"{kind} {mib} MiB" for kind, mib in found["room"].items())
        )


def _cell(value: Any) -> str:
    return (
        f"{value:,.0f}"
        if isinstance(value, float) and value > 100
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conditions", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer jobs, shorter lines, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    words = parser.parse_args()
    if unknown := set(words.parts) - set(PARTS):
        parser.error(f"no part called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    found = measure(words.parts, quick=words.quick)
    show(found, output.console())
    if words.json:
        words.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
