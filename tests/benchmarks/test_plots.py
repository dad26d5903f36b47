"""The charts of the measured figures."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.publish.rows import rows
from benchmarks.peers.results import Results
from benchmarks.peers.systems import PEERS
from benchmarks.plots import charts, save

FIGURES = {
    "drain_jobs": 100, "drain_seconds": 100 / 4321.0, "worker_us": 10.0,
    "enqueue_jobs": 4, "enqueue_seconds": 10.0,
    "drain_server": {"cpu_us": 5.0},
}  # fmt: skip
SYSTEMS = {peer.key: FIGURES for peer in PEERS if peer.name in ("dibs", "dibs, 1 h")}
NO_BULLMQ = {"redis: bullmq": {"not_run": "needs Node"}}


def test_each_chart_shows_its_figures(tmp_path: Path) -> None:
    """A system without a measurement has no bar. The same data gives the same file."""
    measured = Results({}, [{"baselines": {}, "systems": SYSTEMS | NO_BULLMQ}])
    for folder in ("one", "two"):
        save(charts(rows(measured)), tmp_path / folder)

    drawn = {path.stem: path.read_text() for path in (tmp_path / "one").iterdir()}
    assert set(drawn) == {"throughput-redis", "throughput-postgresql", "cpu"}
    assert "4,321" in drawn["throughput-redis"]
    assert "bullmq" not in drawn["throughput-redis"]
    assert drawn == {path.stem: path.read_text() for path in (tmp_path / "two").iterdir()}
