"""dibs compared with the best of its peers, figure by figure, and the goals of the project."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from benchmarks.peers.publish.rows import Row, ratio
from benchmarks.peers.publish.table import Grid, cell, markdown
from benchmarks.peers.results import Results


@frozen
class Measure:
    """A figure by which dibs and its peers are compared."""

    title: str
    kind: str
    #: Name in the rows.
    name: str
    form: str = ",.0f"
    #: True if the smaller figure is better.
    less: bool = False
    #: The goal: the least ratio of dibs to the best peer, or the greatest if less is better.
    goal: float | None = None
    #: Only this peer counts; "" is the best of all.
    peer: str = ""


MEASURES: Final = (
    Measure("Redis: drain, jobs/s", "redis", "drain", goal=3),
    Measure("Redis: bulk enqueue, jobs/s", "redis", "enqueue"),
    Measure("Redis: awaited enqueues/s", "redis", "awaited", goal=1),
    Measure("Redis: blocking enqueues/s", "redis", "blocking", goal=1),
    Measure("Redis: pickup p50, ms", "redis", "pickup_p50_ms", ".2f", less=True, goal=1, peer="bee-queue"),
    Measure("Redis: result p50, ms", "redis", "result_p50_ms", ".2f", less=True, goal=1.2),
    Measure("Redis: server CPU of a job's drain, µs", "redis", "server_us", ".1f", less=True),
    Measure("Redis: worker CPU a job, µs", "redis", "worker_us", ".1f", less=True),
    Measure("Postgres: drain, jobs/s", "postgresql", "drain", goal=1.3, peer="graphile-worker"),
    Measure("Postgres: bulk enqueue, jobs/s", "postgresql", "enqueue"),
    Measure("Postgres: awaited enqueues/s", "postgresql", "awaited", goal=1),
    Measure("Postgres: pickup p50, ms", "postgresql", "pickup_p50_ms", ".2f", less=True, goal=1),
    Measure("Postgres: server CPU of a job's drain, µs", "postgresql", "server_us", ".1f", less=True, goal=1),
    Measure("Postgres: WAL of a job's drain, bytes", "postgresql", "wal_bytes", ",.0f", less=True, goal=1),
    Measure("Postgres: worker CPU a job, µs", "postgresql", "worker_us", ".1f", less=True),
    Measure("files: drain, jobs/s", "file", "drain"),
    Measure("files: bulk enqueue, jobs/s", "file", "enqueue"),
    Measure("files: blocking enqueues/s", "file", "blocking"),
    Measure("files: pickup p50, ms", "file", "pickup_p50_ms", ".2f", less=True),
    Measure("memory: drain, jobs/s", "memory", "drain", goal=1),
)
#: Rows of the README.
SHORT: Final = (
    "Redis: drain, jobs/s",
    "Redis: bulk enqueue, jobs/s",
    "Redis: awaited enqueues/s",
    "Redis: pickup p50, ms",
    "Postgres: drain, jobs/s",
    "Postgres: bulk enqueue, jobs/s",
    "Postgres: awaited enqueues/s",
    "Postgres: pickup p50, ms",
    "files: drain, jobs/s",
    "files: blocking enqueues/s",
    "memory: drain, jobs/s",
)


@frozen
class Duel:
    """A figure of dibs and of a peer. `verdict` compares their ratio with the goal."""

    measure: Measure
    dibs: float
    peer: str
    value: float
    ratio: float
    #: The ratio of dibs with outcomes kept for an hour.
    kept: float | None

    @property
    def verdict(self) -> str:
        goal = self.measure.goal
        if goal is None:
            return "-"
        return "met" if (self.ratio <= goal if self.measure.less else self.ratio >= goal) else "missed"


def duels(results: Results, found: list[Row]) -> list[Duel]:
    """Return dibs and its best peer for each figure that both have."""
    return [duel for measure in MEASURES if (duel := _duel(measure, results, found))]


def _duel(measure: Measure, results: Results, found: list[Row]) -> Duel | None:
    of_kind = [row for row in found if row["kind"] == measure.kind and row.get(measure.name) is not None]
    ours = next((row for row in of_kind if row["name"] == "dibs"), None)
    peers = [row for row in of_kind if row["runtime"] != "dibs" and measure.peer in ("", row["name"])]
    # A system that is far behind has its figures of few jobs.
    peers = [row for row in peers if not row["behind"]]
    if ours is None or not peers:
        return None
    best = (min if measure.less else max)(peers, key=lambda row: row[measure.name])
    key, other = f"{measure.kind}: dibs", f"{measure.kind}: {best['name']}"
    found_ratio = ratio(results, key, other, measure.name)
    if found_ratio is None:
        return None
    kept = ratio(results, f"{key}, 1 h", other, measure.name)
    return Duel(measure, ours[measure.name], best["name"], best[measure.name], found_ratio, kept)


def table(results: Results, found: list[Row]) -> str:
    """Return the table of the README."""
    lines = [
        [
            *(duel.measure.title, cell(duel.dibs, duel.measure.form)),
            *(f"{duel.peer} {cell(duel.value, duel.measure.form)}", cell(duel.ratio, ".2f")),
        ]
        for duel in duels(results, found)
        if duel.measure.title in SHORT
    ]
    return markdown(Grid(["", "dibs", "best peer", "ratio"], lines))


def goals(results: Results, found: list[Row]) -> str:
    """Return the table of all measures with the goals."""
    lines = [
        [
            *(duel.measure.title, cell(duel.dibs, duel.measure.form)),
            f"{duel.peer} {cell(duel.value, duel.measure.form)}",
            *(cell(duel.ratio, ".2f"), cell(duel.kept, ".2f"), _goal(duel.measure), duel.verdict),
        ]
        for duel in duels(results, found)
    ]
    headings = ["", "dibs", "best peer", "ratio", "ratio with outcomes kept", "goal", "verdict"]
    return markdown(Grid(headings, lines))


def _goal(measure: Measure) -> str:
    if measure.goal is None:
        return "-"
    return f"{'at most' if measure.less else 'at least'} {measure.goal:g}"
