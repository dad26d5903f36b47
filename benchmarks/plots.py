"""The charts of docs/explanation/performance.md, which `benchmarks.peers.publish` draws."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.peers.publish.rows import Row

DIBS_COLOUR: Final = "#0b7a75"
OTHER_COLOUR: Final = "#9aa5b1"
TITLES: Final = {"redis": "Redis", "postgresql": "Postgres"}


def _bars(axes: Axes, rows: list[Row], key: str, title: str, form: str = ",.0f") -> None:
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


def throughput(rows: list[Row], kind: str) -> Figure:
    """Draw the rates of enqueue and drain, in jobs a second."""
    return _panels(rows, kind, (("enqueue", "enqueued a second, in bulk"), ("drain", "drained a second")))


def _panels(rows: list[Row], kind: str, columns: Iterable[tuple[str, str]], form: str = ",.0f") -> Figure:
    measured = [row for row in rows if row["kind"] == kind and "not_run" not in row]
    shown = [(key, title) for key, title in columns if any(row[key] is not None for row in measured)]
    shown = shown or list(columns)  # empty panels, if no system of this kind was measured
    figure = Figure(figsize=(9, 0.7 + 0.32 * len(measured)), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for (key, title), one in zip(shown, axes, strict=True):
        _bars(one, measured, key, f"{TITLES[kind]}: {title}", form)
    return figure


def cpu(rows: list[Row]) -> Figure:
    """Draw the CPU time of worker and server for each job on Redis. The lowest bar is the best."""
    columns = (("worker_us", "worker, µs of CPU a job"), ("server_us", "server, µs of CPU a job"))
    return _panels(rows, "redis", columns, ",.0f")


def charts(rows: list[Row]) -> dict[str, Figure]:
    """Return the charts by the names of their files, without suffix."""
    figures = {f"throughput-{kind}": throughput(rows, kind) for kind in ("redis", "postgresql")}
    return figures | {"cpu": cpu(rows)}


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
