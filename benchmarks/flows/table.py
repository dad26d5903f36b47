"""The results of a comparison of flows: a JSON file, and tables of it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from attrs import define, field, frozen
from rich.console import Console
from rich.table import Table

from benchmarks.flows.systems import SYSTEMS
from benchmarks.peers.environments import NODE
from benchmarks.peers.results import current_commit, rounded


@define
class Results:
    """The figures of all rounds and of the runs with kills, by key of the system."""

    #: The versions of the servers, the machine, the date and the settings of the run.
    about: dict[str, Any]
    #: For each round, the figures of each system, or the reason in `not_run`.
    rounds: list[dict[str, Any]] = field(factory=list)
    #: Lost and doubled fan-ins of each system, or the reason in `not_run`.
    kills: dict[str, Any] = field(factory=dict)

    @classmethod
    def describe(cls, versions: dict[str, str], **settings: object) -> Results:
        return cls(
            {
                "date": datetime.now(UTC).date().isoformat(),
                "commit": current_commit(),
                "cpus": os.cpu_count(),
                "load at the start": os.getloadavg()[0],
                "python": platform.python_version(),
                "node": NODE,
                **versions,
                **settings,
                "requirements": {one.key: list(one.requirements) for one in SYSTEMS if one.requirements},
            }
        )

    @classmethod
    def load(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text("utf-8")))

    def save(self, path: Path | None) -> None:
        """Write the file in one step, if a path was given."""
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        document = rounded({"about": self.about, "rounds": self.rounds, "kills": self.kills})
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        temporary.replace(path)


KINDS: Final = {"redis": "Redis", "postgresql": "Postgres"}
#: The figures of requests, by kind of server: name in the results -> heading.
REQUESTS: Final = {
    "redis": {"reads": "requests", "commands": "commands"},
    "postgresql": {"statements": "statements", "commits": "commits"},
}


@frozen
class Grid:
    """A table as texts."""

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def grids(results: Results) -> Iterator[Grid]:
    """Yield the tables of each kind of server, and the table of the kills."""
    for kind, name in KINDS.items():
        keys = [one.key for one in SYSTEMS if one.kind == kind]
        measured = {key: found for key in keys if (found := figures_of(results, key))}
        if measured:
            yield rates(f"{name}: nodes/s of fan-out and fan-in", measured)
            yield requests(f"{name}: requests for each node", measured, REQUESTS[kind])
            yield handovers(f"{name}: ms from the end of the last node to the start of the fan-in", measured)
    if any("not_run" not in one for one in results.kills.values()):
        yield kills(results)


def figures_of(results: Results, key: str) -> list[dict[str, Any]]:
    """Return the figures of a system in all rounds in which it was measured."""
    return [one[key] for one in results.rounds if "not_run" not in one.get(key, {"not_run": ""})]


def rates(title: str, measured: dict[str, list[dict[str, Any]]]) -> Grid:
    sizes = sizes_of(measured, "rates")
    lines = []
    for key, rounds in measured.items():
        parts = [[one["rates"][size] for one in rounds] for size in sizes]
        per_second = [median(one["jobs"] / one["seconds"] for one in part) for part in parts]
        lines.append([key.partition(": ")[2], *(f"{one:,.0f}" for one in per_second)])
    return Grid(title, ["system", *(node_count(size) for size in sizes)], lines)


def requests(title: str, measured: dict[str, list[dict[str, Any]]], names: dict[str, str]) -> Grid:
    sizes = sizes_of(measured, "rates")
    columns = [(size, name) for size in sizes for name in names]
    lines = []
    for key, rounds in measured.items():
        parts = [[one["rates"][size]["requests"][name] for one in rounds] for size, name in columns]
        lines.append([key.partition(": ")[2], *map(_median_or_dash, parts)])
    headings = [f"{names[name]}, {node_count(size)}" for size, name in columns]
    return Grid(title, ["system", *headings], lines)


def handovers(title: str, measured: dict[str, list[dict[str, Any]]]) -> Grid:
    """Return p50 and p99 of all rounds. Flows of the rates have further sizes."""
    sizes = sizes_of(measured, "handovers_ms")
    more = [size for size in sizes_of(measured, "rates") if size not in sizes]
    lines = []
    for key, rounds in measured.items():
        samples = [[ms for one in rounds for ms in one["handovers_ms"][size]] for size in sizes]
        samples += [[ms for one in rounds for ms in one["rates"][size]["handover_ms"]] for size in more]
        cells = [f"{value:,.1f}" for part in samples for value in percentiles(part)]
        lines.append([key.partition(": ")[2], *cells])
    headings = [f"p{p}, {node_count(size)}" for size in (*sizes, *more) for p in (50, 99)]
    return Grid(title, ["system", *headings], lines)


def sizes_of(measured: dict[str, list[dict[str, Any]]], name: str) -> list[str]:
    """Return the numbers of nodes, which are the same for all systems."""
    return list(next(iter(measured.values()))[0][name])


def node_count(size: str) -> str:
    return "1 node" if size == "1" else f"{int(size):,} nodes"


def percentiles(samples: list[float]) -> tuple[float, float]:
    """Return p50 and p99. Of one sample, both are this sample."""
    if len(samples) == 1:
        return samples[0], samples[0]
    parts = quantiles(samples, n=100, method="inclusive")
    return parts[49], parts[98]


def _median_or_dash(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else "-"


def kills(results: Results) -> Grid:
    """Return the counts of fan-ins under kills."""
    columns = {
        "flows": "flows",
        "lost": "lost",
        "lost_after_nodes": "of these, all nodes ended",
        "doubled": "doubled",
        "repeated": "repeated after a kill",
        "wrong": "with wrong results",
    }
    lines = [
        [key, *(str(found[name]) for name in columns)]
        for key, found in results.kills.items()
        if "not_run" not in found
    ]
    title = f"fan-ins of {results.about['kills']} rounds, each with a killed worker"
    return Grid(title, ["system", *columns.values()], lines)


def show(results: Results, console: Console) -> None:
    """Print all tables, and a line for each system that could not run."""
    for grid in grids(results):
        drawn = Table(title=grid.title)
        drawn.add_column(grid.headings[0], no_wrap=True)
        for heading in grid.headings[1:]:
            drawn.add_column(heading, justify="right")
        for line in grid.lines:
            drawn.add_row(*line)
        console.print(drawn)
    for line in not_measured(results):
        console.print(line, style="yellow", highlight=False)


def show_markdown(results: Results, console: Console) -> None:
    """Print all tables as Markdown, each below its title."""
    for grid in grids(results):
        lines = [grid.headings, ["---"] * len(grid.headings), *grid.lines]
        rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        console.print(f"{grid.title}\n\n{rows}\n")
    for line in not_measured(results):
        console.print(f"{line}\n")


def not_measured(results: Results) -> list[str]:
    parts = (*results.rounds, results.kills)
    failures = ((key, found) for part in parts for key, found in part.items() if "not_run" in found)
    return [f"{key}: not measured: {found['not_run']}" for key, found in failures]
