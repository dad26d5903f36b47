"""The charts of the measured figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.peers.systems import PEERS as PEERS_OF_RACE
from benchmarks.plots import main


def figures(kind: str, drain: float) -> dict[str, object]:
    """Return figures as benchmarks.peers writes them. In memory only the drain is measured."""
    drained: dict[str, object] = {"drain_jobs": 100, "drain_seconds": 100 / drain, "worker_us": 10.0}
    if kind == "memory":
        return drained
    return drained | {
        "enqueue_jobs": 4, "enqueue_seconds": 10.0, "pickup_ms": [0.4, 0.4],
        "drain_server": {"cpu_us": 5.0} if kind == "redis" else None,
    }  # fmt: skip


MEASURED = [peer for peer in PEERS_OF_RACE if peer.name in ("dibs", "dibs, 1 h")]
SYSTEMS = {peer.key: figures(peer.kind, 4321.0) for peer in MEASURED}
PEERS = {
    "about": {},
    "rounds": [{"baselines": {}, "systems": {**SYSTEMS, "redis: bullmq": {"not_run": "needs Node"}}}],
}
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
    assert "bullmq" not in drawn["throughput-redis"]
    assert "enqueued" in drawn["throughput-file"]
    assert "enqueued" not in drawn["throughput-memory"]
    assert drawn == {path.stem: path.read_text() for path in (tmp_path / "two").iterdir()}
