"""The medians of all rounds: one row of figures for each system."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, Final

from benchmarks.peers.results import Results
from benchmarks.peers.systems import PEERS, Peer

Figures = dict[str, Any]
Row = dict[str, Any]


def _rate(name: str) -> Callable[[Figures], float]:
    return lambda figures: figures[f"{name}_jobs"] / figures[f"{name}_seconds"]


def _part(*path: str | int) -> Callable[[Figures], float]:
    def read(figures: Any) -> Any:
        for one in path:
            figures = figures[one]
        return figures

    return read


#: Name in a row -> function that reads the value from the figures of a round.
COLUMNS: Final[dict[str, Callable[[Figures], float]]] = {
    "enqueue_jobs": _part("enqueue_jobs"),
    "enqueue": _rate("enqueue"),
    "enqueue_seconds": _part("enqueue_seconds"),
    "drain_jobs": _part("drain_jobs"),
    "drain": _rate("drain"),
    "drain_seconds": _part("drain_seconds"),
    "awaited": _part("awaited"),
    "blocking": _part("blocking"),
    "worker_us": _part("worker_us"),
    "server_us": _part("drain_server", "cpu_us"),
    "enqueue_server_us": _part("enqueue_server", "cpu_us"),
    "commands": _part("drain_server", "commands"),
    "bytes": _part("drain_server", "bytes"),
    "wal_bytes": _part("drain_server", "wal_bytes"),
    "enqueue_wal_bytes": _part("enqueue_server", "wal_bytes"),
    "waiting_bytes": _part("waiting_bytes"),
    "kept_bytes": _part("kept_bytes"),
    "pickup_p50_ms": _part("pickup_ms", 0),
    "pickup_p99_ms": _part("pickup_ms", 1),
    "result_p50_ms": _part("result_ms", 0),
    "result_p99_ms": _part("result_ms", 1),
    "idle_commands": _part("idle_server", "commands"),
}


def rows(results: Results) -> list[Row]:
    """Return the rows of all systems, in the order of the list of systems."""
    return [row for peer in PEERS if (row := peer_row(peer, results)) is not None]


def peer_row(peer: Peer, results: Results) -> Row | None:
    """Return the medians of a system; None if it was not measured."""
    rounds = [one for one in results.rounds if peer.key in one["systems"]]
    measured = [one["systems"][peer.key] for one in rounds]
    about: Row = {"name": peer.name, "kind": peer.kind, "behind": peer.behind, "runtime": peer.runtime}
    reasons = [figures["not_run"] for figures in measured if "not_run" in figures]
    if not measured or reasons:
        return about | {"not_run": reasons[-1]} if reasons else None
    baselines = [one["baselines"] for one in rounds]
    row = about | medians(measured)
    for name, step in (("enqueue", "put"), ("drain", "take + finish")):
        row[f"{name}_ratio"] = _baseline_ratio(peer, name, step, measured, baselines)
    row["queues"] = {
        queues: medians(many)
        for queues in peer.queues
        if (many := [figures[f"queues_{queues}"] for figures in measured if f"queues_{queues}" in figures])
    }
    return row


def medians(measured: list[Figures]) -> Row:
    """Return the median of each column. None: the system does not have this figure."""
    return {name: _median([_read(column, one) for one in measured]) for name, column in COLUMNS.items()}


def ratio(results: Results, key: str, other: str, name: str) -> float | None:
    """Return the median of the ratios of two systems within each round."""
    column = COLUMNS[name]
    ratios = []
    for one in results.rounds:
        ours, theirs = (_read(column, one["systems"].get(which, {})) for which in (key, other))
        ratios.append(ours / theirs if ours is not None and theirs else None)
    return _median(ratios)


def _baseline_ratio(
    peer: Peer, name: str, step: str, measured: list[Figures], baselines: list[dict[str, float]]
) -> float | None:
    rates = [_read(COLUMNS[name], one) for one in measured]
    least = [one.get(f"{peer.kind} {step}") for one in baselines]
    return _median([rate / base if rate and base else None for rate, base in zip(rates, least, strict=True)])


def _read(column: Callable[[Figures], float], figures: Figures) -> float | None:
    try:
        return column(figures)
    except (KeyError, TypeError):
        return None


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
