"""Draw the charts: `python -m benchmarks.plots --peers FILE --conditions FILE --into FOLDER`.

Reads the JSON files of `benchmarks.peers` and `benchmarks.conditions`, and writes one SVG file for each
chart.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.publish.rows import rows as peer_rows
from benchmarks.peers.results import Results

DIBS_COLOUR: Final = "#0b7a75"
OTHER_COLOUR: Final = "#9aa5b1"
TITLES: Final = {"redis": "Redis", "postgresql": "Postgres", "file": "files", "memory": "memory"}
COLOURS: Final = {"redis": "#c0392b", "postgresql": "#2f6fad", "file": "#0b7a75", "memory": "#8e6bbf"}


def _bars(axes: Axes, rows: list[dict[str, Any]], key: str, title: str, form: str = ",.0f") -> None:
    """Draw one bar for each system, the largest value on top."""
    rows = sorted((row for row in rows if row.get(key) is not None), key=lambda row: row[key])
    names, values = [row["name"] for row in rows], [row[key] for row in rows]
    bars = axes.barh(
        names, values, color=[DIBS_COLOUR if name.startswith("dibs") else OTHER_COLOUR for name in names]
    )
    axes.bar_label(bars, labels=[format(value, form) for value in values], padding=3, fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.margins(x=0.18)
    _style(axes)


def _style(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)


def throughput(rows: list[dict[str, Any]], kind: str) -> Figure:
    """Draw the rates of enqueue and drain, in jobs a second."""
    return _panels(rows, kind, (("enqueue", "enqueued a second, in bulk"), ("drain", "drained a second")))


def latency(rows: list[dict[str, Any]], kind: str) -> Figure:
    """Draw the ms from enqueue to handler with an idle worker. The lowest bar is the best."""
    columns = (("pickup_p50_ms", "pick-up p50, ms"), ("pickup_p99_ms", "pick-up p99, ms"))
    return _panels(rows, kind, columns, ".2f")


def _panels(
    rows: list[dict[str, Any]], kind: str, columns: Iterable[tuple[str, str]], form: str = ",.0f"
) -> Figure:
    measured = [row for row in rows if row["kind"] == kind and "not_run" not in row]
    shown = [(key, title) for key, title in columns if any(row[key] is not None for row in measured)]
    shown = shown or list(columns)  # empty panels, if no system of this kind was measured
    figure = Figure(figsize=(9, 0.7 + 0.32 * len(measured)), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for (key, title), one in zip(shown, axes, strict=True):
        _bars(one, measured, key, f"{TITLES[kind]}: {title}", form)
    return figure


def cpu(rows: list[dict[str, Any]]) -> Figure:
    """Draw the CPU time of worker and server for each job on Redis. The lowest bar is the best."""
    columns = (("worker_us", "worker, µs of CPU a job"), ("server_us", "server, µs of CPU a job"))
    return _panels(rows, "redis", columns, ",.0f")


def distance(rows: list[dict[str, Any]]) -> Figure:
    """Draw the rates by network delay, as a share of the rate without delay."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for key, axes in zip(("enqueue", "drain"), figure.subplots(1, 2), strict=True):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            of_kind = [row for row in rows if row["kind"] == kind]
            shares = [row[key] / of_kind[0][key] for row in of_kind]
            axes.plot(
                [row["added_ms"] for row in of_kind], shares, "o-", color=COLOURS[kind], label=TITLES[kind]
            )
        axes.set_title(f"{key}: share of the rate without delay", fontsize=10, loc="left")
        axes.set_xlabel("ms added to each round trip", fontsize=8)
        axes.set_ylim(0, 1.25)
        axes.legend(fontsize=8, frameon=False)
        _style(axes)
    return figure


def backlog(rows: list[dict[str, Any]]) -> Figure:
    """Draw the rate by the number of waiting jobs, as a share of the rate with the fewest."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind and not row["scheduled"]]
        shares = [row["per_second"] / of_kind[0]["per_second"] for row in of_kind]
        axes.plot([row["waiting"] for row in of_kind], shares, "o-", color=COLOURS[kind], label=TITLES[kind])
    axes.set_xscale("log")
    axes.set_ylim(0, 1.5)
    axes.set_title(
        "rate by number of waiting jobs, share of the rate with the fewest", fontsize=10, loc="left"
    )
    axes.legend(fontsize=8, frameon=False, ncols=4)
    _style(axes)
    return figure


def charts(peers: dict[str, Any], conditions: dict[str, Any]) -> dict[str, Figure]:
    """Return the charts by the names of their files, without suffix."""
    rows = peer_rows(Results(peers["about"], peers["rounds"]))
    figures = {f"throughput-{kind}": throughput(rows, kind) for kind in TITLES}
    figures |= {f"pickup-{kind}": latency(rows, kind) for kind in ("redis", "postgresql")}
    figures["cpu"] = cpu(rows)
    if "far" in conditions:
        figures["distance"] = distance(conditions["far"])
    if "line" in conditions:
        figures["line"] = backlog(conditions["line"])
    return figures


def save(figures: dict[str, Figure], folder: Path) -> None:
    """Write the charts as SVG files, and print their paths."""
    mpl.rcParams["svg.fonttype"] = "none"
    # A fixed salt: the same data gives the same file.
    mpl.rcParams["svg.hashsalt"] = "dibs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        print(path)


def main() -> None:
    """Read the files, draw all charts, and print the paths of the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--peers", type=Path, required=True, help="JSON of benchmarks.peers")
    parser.add_argument("--conditions", type=Path, required=True, help="JSON of benchmarks.conditions")
    parser.add_argument("--into", type=Path, required=True, help="folder of the SVG files")
    options = parser.parse_args()
    save(
        charts(json.loads(options.peers.read_text()), json.loads(options.conditions.read_text())),
        options.into,
    )


if __name__ == "__main__":
    main()
