"""The charts of the measured figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.plots import main


def row(name: str, kind: str, drain: float) -> dict[str, object]:
    """Return a row as benchmarks.peers writes it. In memory only the drain is measured."""
    unless_in_memory = None if kind == "memory" else 0.4
    return {
        "name": name, "kind": kind, "enqueue": unless_in_memory, "drain": drain, "worker_us": 10.0,
        "server_us": 5.0 if kind == "redis" else None, "pickup_p50_ms": unless_in_memory,
        "pickup_p99_ms": unless_in_memory,
    }  # fmt: skip


KINDS = ("redis", "postgresql", "file", "memory")
ROWS = [row(name, kind, rate) for kind in KINDS for name, rate in (("dibs", 4321.0), ("other", 1234.0))]
PEERS = {"rows": [*ROWS, {"name": "absent", "kind": "redis", "not_run": "needs Node"}]}
CONDITIONS = {
    "far": [{"kind": "redis", "added_ms": ms, "enqueue": 10.0, "drain": 10.0 - ms} for ms in (0, 1, 2)],
    "line": [{"kind": "file", "waiting": n, "scheduled": 0, "per_second": n} for n in (1000, 10_000)],
}


def test_each_chart_shows_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without a measurement has no bar, and a column without figures has no panel.

    The same data gives the same file.
    """
    peers, conditions = tmp_path / "peers.json", tmp_path / "conditions.json"
    peers.write_text(json.dumps(PEERS))
    conditions.write_text(json.dumps(CONDITIONS))
    for folder in ("one", "two"):
        arguments = [
            "plots",
            "--peers",
            str(peers),
            "--conditions",
            str(conditions),
            "--into",
            str(tmp_path / folder),
        ]
        monkeypatch.setattr("sys.argv", arguments)
        main()

    drawn = {path.stem: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert {"throughput-redis", "throughput-memory", "pickup-postgresql", "cpu", "distance", "line"} <= set(
        drawn
    )
    assert "4,321" in drawn["throughput-redis"]
    assert "absent" not in drawn["throughput-redis"]
    assert "enqueued" in drawn["throughput-file"]
    assert "enqueued" not in drawn["throughput-memory"]
    assert drawn == {path.stem: path.read_text() for path in (tmp_path / "two").iterdir()}
