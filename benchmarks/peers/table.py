"""The medians of a race, and how they are shown to people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from benchmarks.peers.catalogue import Peer
from benchmarks.peers.race import Turn

if TYPE_CHECKING:
    from rich.console import Console

#: Heading -> the word of a row it shows, and how; `x` is the yardstick's rate in the same round.
COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "put/s": ("enqueue", ",.0f"),
    "put x": ("enqueue_ratio", ".2f"),
    "drain/s": ("drain", ",.0f"),
    "drain x": ("drain_ratio", ".2f"),
    "worker": ("worker_us", ".0f"),
    "server": ("server_us", ".0f"),
    "calls": ("commands", ".1f"),
    "bytes": ("bytes", ",.0f"),
    "p50": ("pickup_p50_ms", ".2f"),
    "p99": ("pickup_p99_ms", ".2f"),
}


def row(
    peer: Peer,
    turns: dict[tuple[str, str], list[Turn]],
    out: dict[tuple[str, str], str],
    bare: Sequence[dict[str, float]],
) -> dict[str, Any]:
    """Return the medians of a peer's turns; ratios are to the yardstick of the same round."""
    found = turns.get((peer.kind, peer.name), [])
    told: dict[str, Any] = {"name": peer.name, "kind": peer.kind, "needs": list(peer.needs)}
    if not found:
        return told | {"not_run": out.get((peer.kind, peer.name), "")}
    return told | {
        "enqueue": _middle(found, lambda turn: turn.enqueue),
        "drain": _middle(found, lambda turn: turn.drain),
        "enqueue_ratio": _ratio(
            [turn.enqueue for turn in found], [one.get(f"{peer.kind} put") for one in bare]
        ),
        "drain_ratio": _ratio(
            [turn.drain for turn in found], [one.get(f"{peer.kind} take + finish") for one in bare]
        ),
        "worker_us": _middle(found, lambda turn: turn.worker_us),
        "server_us": _middle(found, lambda turn: turn.server.cpu_us if turn.server else None),
        "commands": _middle(found, lambda turn: turn.server.commands if turn.server else None),
        "bytes": _middle(found, lambda turn: turn.server.bytes if turn.server else None),
        "pickup_p50_ms": _middle(found, lambda turn: turn.pickup_ms and turn.pickup_ms[0]),
        "pickup_p99_ms": _middle(found, lambda turn: turn.pickup_ms and turn.pickup_ms[1]),
    }


def _middle(turns: list[Turn], of: Callable[[Turn], float | None]) -> float | None:
    known = [value for turn in turns if (value := of(turn)) is not None]
    return median(known) if known else None


def _ratio(ours: Sequence[float | None], bare: Sequence[float | None]) -> float | None:
    pairs = [o / b for o, b in zip(ours, bare, strict=True) if o is not None and b is not None]
    return median(pairs) if pairs else None


def show(kind: str, rows: list[dict[str, Any]], console: Console) -> None:
    """Print one kind's table, fastest drain first, and below who did not run and why."""
    ran = sorted((row for row in rows if "not_run" not in row), key=lambda row: -row["drain"])
    shown = {heading: how for heading, how in COLUMNS.items() if any(row[how[0]] is not None for row in ran)}
    grid = Table(
        title=f"{kind}: jobs/s, x the yardstick; µs of worker and server, calls, bytes a job; pick-up ms"
    )
    grid.add_column("system", no_wrap=True)
    for heading in shown:
        grid.add_column(heading, justify="right", no_wrap=True)
    for one in ran:
        grid.add_row(one["name"], *(_cell(one[word], form) for word, form in shown.values()))
    console.print(grid)
    for one in rows:
        if one.get("not_run"):
            console.print(f"{one['name']}: not run: {one['not_run']}", style="yellow", highlight=False)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
