"""The medians of a comparison, as rows of JSON and as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from benchmarks.peers.measure import Measurement
from benchmarks.peers.systems import Peer

if TYPE_CHECKING:
    from rich.console import Console

#: Heading -> (key of the row, format). An `x` is the ratio to the baseline of the same round.
COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "enqueue": ("enqueue", ",.0f"),
    "enqueue x": ("enqueue_ratio", ".2f"),
    "drain": ("drain", ",.0f"),
    "drain x": ("drain_ratio", ".2f"),
    "worker": ("worker_us", ".0f"),
    "server": ("server_us", ".0f"),
    "commands": ("commands", ".1f"),
    "bytes": ("bytes", ",.0f"),
    "p50": ("pickup_p50_ms", ".2f"),
    "p99": ("pickup_p99_ms", ".2f"),
}


def row(
    peer: Peer, results: list[Measurement], unavailable: str, baselines: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Return the medians of a peer's results; `unavailable` is the reason if there are none.

    Each ratio compares a result with the baseline of the same round.
    """
    about: dict[str, Any] = {"name": peer.name, "kind": peer.kind, "requirements": list(peer.requirements)}
    if not results:
        return about | {"not_run": unavailable}
    return about | {
        "enqueue": _median(results, lambda one: one.enqueue),
        "drain": _median(results, lambda one: one.drain),
        "enqueue_ratio": _median_ratio(
            [one.enqueue for one in results], [rates.get(f"{peer.kind} put") for rates in baselines]
        ),
        "drain_ratio": _median_ratio(
            [one.drain for one in results], [rates.get(f"{peer.kind} take + finish") for rates in baselines]
        ),
        "worker_us": _median(results, lambda one: one.worker_us),
        "server_us": _median(results, lambda one: one.server.cpu_us if one.server else None),
        "commands": _median(results, lambda one: one.server.commands if one.server else None),
        "bytes": _median(results, lambda one: one.server.bytes if one.server else None),
        "pickup_p50_ms": _median(results, lambda one: one.pickup_ms and one.pickup_ms[0]),
        "pickup_p99_ms": _median(results, lambda one: one.pickup_ms and one.pickup_ms[1]),
    }


def _median(results: list[Measurement], value_of: Callable[[Measurement], float | None]) -> float | None:
    known = [value for one in results if (value := value_of(one)) is not None]
    return median(known) if known else None


def _median_ratio(rates: Sequence[float | None], baselines: Sequence[float | None]) -> float | None:
    ratios = [
        rate / baseline
        for rate, baseline in zip(rates, baselines, strict=True)
        if rate is not None and baseline is not None
    ]
    return median(ratios) if ratios else None


def show(kind: str, rows: list[dict[str, Any]], console: Console) -> None:
    """Print the table of one kind, fastest drain first, and a line for each peer that cannot run."""
    measured = sorted((row for row in rows if "not_run" not in row), key=lambda row: -row["drain"])
    columns = {
        heading: column
        for heading, column in COLUMNS.items()
        if any(row[column[0]] is not None for row in measured)
    }
    grid = Table(
        title=f"{kind}: jobs/s and their ratio (x) to the baseline; µs of CPU of worker and server, "
        "commands and bytes for each job; pick-up latency in ms"
    )
    grid.add_column("system", no_wrap=True)
    for heading in columns:
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in measured:
        grid.add_row(row["name"], *(_cell(row[key], form) for key, form in columns.values()))
    console.print(grid)
    for row in rows:
        if row.get("not_run"):
            console.print(f"{row['name']}: not measured: {row['not_run']}", style="yellow", highlight=False)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
