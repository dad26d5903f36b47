"""The pictures show what was measured, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.plots import main


def row(name: str, kind: str, drain: float) -> dict[str, object]:
    """A row as the race keeps it: in memory nothing is enqueued from elsewhere."""
    elsewhere = None if kind == "memory" else 0.4
    return {
        "name": name, "kind": kind, "enqueue": elsewhere, "drain": drain, "worker_us": 10.0,
        "server_us": 5.0 if kind == "redis" else None, "pickup_p50_ms": elsewhere, "pickup_p99_ms": elsewhere,
    }  # fmt: skip


KINDS = ("redis", "postgresql", "file", "memory")
RAN = [row(name, kind, rate) for kind in KINDS for name, rate in (("dibs", 4321.0), ("other", 1234.0))]
PEERS = {"rows": [*RAN, {"name": "absent", "kind": "redis", "not_run": "needs Node"}]}
CONDITIONS = {
    "far": [{"kind": "redis", "added_ms": ms, "enqueue": 10.0, "drain": 10.0 - ms} for ms in (0, 1, 2)],
    "line": [{"kind": "file", "waiting": n, "scheduled": 0, "per_second": n} for n in (1000, 10_000)],
}


def test_each_picture_is_drawn_from_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What did not run has no bar; what has no figure has no panel; the same figures give the same file."""
    peers, conditions = tmp_path / "peers.json", tmp_path / "conditions.json"
    peers.write_text(json.dumps(PEERS))
    conditions.write_text(json.dumps(CONDITIONS))
    for folder in ("one", "two"):
        words = [
            "plots",
            "--peers",
            str(peers),
            "--conditions",
            str(conditions),
            "--into",
            str(tmp_path / folder),
        ]
        monkeypatch.setattr("sys.argv", words)
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
