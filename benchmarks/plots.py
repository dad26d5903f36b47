"""Draw what was measured: `python -m benchmarks.plots --peers FILE --conditions FILE --into FOLDER`.

Reads the JSON of `benchmarks.peers` and `benchmarks.conditions`; one SVG a picture, text left as text.
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

OURS: Final = "#0b7a75"
THEIRS: Final = "#9aa5b1"
NAMES: Final = {"redis": "Redis", "postgresql": "Postgres", "file": "files", "memory": "memory"}
COLOURS: Final = {"redis": "#c0392b", "postgresql": "#2f6fad", "file": "#0b7a75", "memory": "#8e6bbf"}


def _bars(axes: Axes, rows: list[dict[str, Any]], word: str, title: str, form: str = ",.0f") -> None:
    """Draw one bar a system, the best on top."""
    rows = sorted((row for row in rows if row.get(word) is not None), key=lambda row: row[word])
    names, values = [row["name"] for row in rows], [row[word] for row in rows]
    bars = axes.barh(names, values, color=[OURS if name.startswith("dibs") else THEIRS for name in names])
    axes.bar_label(bars, labels=[format(value, form) for value in values], padding=3, fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.margins(x=0.18)
    _plain(axes)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(labelsize=8)


def throughput(rows: list[dict[str, Any]], kind: str) -> Figure:
    """Draw jobs a second, enqueued and drained."""
    return _beside(rows, kind, (("enqueue", "enqueued a second, in bulk"), ("drain", "drained a second")))


def latency(rows: list[dict[str, Any]], kind: str) -> Figure:
    """Draw ms from enqueue to handler, worker idle: here the lowest bar is the best."""
    words = (("pickup_p50_ms", "pick-up p50, ms"), ("pickup_p99_ms", "pick-up p99, ms"))
    return _beside(rows, kind, words, ".2f")


def _beside(
    rows: list[dict[str, Any]], kind: str, words: Iterable[tuple[str, str]], form: str = ",.0f"
) -> Figure:
    known = [row for row in rows if row["kind"] == kind and "not_run" not in row]
    shown = [(word, title) for word, title in words if any(row[word] is not None for row in known)]
    figure = Figure(figsize=(9, 0.7 + 0.32 * len(known)), layout="constrained")
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for (word, title), one in zip(shown, axes, strict=True):
        _bars(one, known, word, f"{NAMES[kind]}: {title}", form)
    return figure


def cpu(rows: list[dict[str, Any]]) -> Figure:
    """Draw the CPU a job costs on Redis, the worker's and the server's: here the lowest bar is the best."""
    words = (("worker_us", "worker, µs of CPU a job"), ("server_us", "server, µs of CPU a job"))
    return _beside(rows, "redis", words, ",.0f")


def distance(rows: list[dict[str, Any]]) -> Figure:
    """Draw the rates by what was added to each round trip, as parts of those with nothing added."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    for word, axes in zip(("enqueue", "drain"), figure.subplots(1, 2), strict=True):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            mine = [row for row in rows if row["kind"] == kind]
            shares = [row[word] / mine[0][word] for row in mine]
            axes.plot([row["added_ms"] for row in mine], shares, "o-", color=COLOURS[kind], label=NAMES[kind])
        axes.set_title(f"{word}: of the rate with nothing added", fontsize=10, loc="left")
        axes.set_xlabel("ms added to each round trip", fontsize=8)
        axes.set_ylim(0, 1.25)
        axes.legend(fontsize=8, frameon=False)
        _plain(axes)
    return figure


def line(rows: list[dict[str, Any]]) -> Figure:
    """Draw the rate while so many wait, as a part of that of the shortest line."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots()
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind and not row["scheduled"]]
        shares = [row["per_second"] / mine[0]["per_second"] for row in mine]
        axes.plot([row["waiting"] for row in mine], shares, "o-", color=COLOURS[kind], label=NAMES[kind])
    axes.set_xscale("log")
    axes.set_ylim(0, 1.5)
    axes.set_title("rate while so many wait, of that with the fewest", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, ncols=4)
    _plain(axes)
    return figure


def pictures(peers: dict[str, Any], conditions: dict[str, Any]) -> dict[str, Figure]:
    """Return each picture by the name of its file."""
    rows = peers["rows"]
    found = {f"throughput-{kind}": throughput(rows, kind) for kind in NAMES}
    found |= {f"pickup-{kind}": latency(rows, kind) for kind in ("redis", "postgresql")}
    found["cpu"] = cpu(rows)
    if "far" in conditions:
        found["distance"] = distance(conditions["far"])
    if "line" in conditions:
        found["line"] = line(conditions["line"])
    return found


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--conditions", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    words = parser.parse_args()
    mpl.rcParams["svg.fonttype"] = "none"
    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = "dibs"
    words.into.mkdir(parents=True, exist_ok=True)
    found = pictures(json.loads(words.peers.read_text()), json.loads(words.conditions.read_text()))
    for name, figure in found.items():
        figure.savefig(words.into / f"{name}.svg", metadata={"Date": None})
        print(words.into / f"{name}.svg")


if __name__ == "__main__":
    main()
