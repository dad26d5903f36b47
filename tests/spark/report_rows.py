"""Warehouses made of given runs, without a storage and without an engine, for the tests of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.history.warehouse import LogGap, State
from tests.spark.warehouse_rows import add_rows

MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
#: 2026-11-20 12:00 UTC, in ms.
NOON: Final = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)


@frozen(kw_only=True)
class Run:
    """One attempt. Times are in ms since the epoch."""

    id: str = "order-1"
    queue: str = "mail"
    end: str = "completed"
    due: int = NOON
    wait: int = 0
    run: int = 100
    holder: str = "host:1"
    attempt: int = 1
    error: str | None = None
    key: str | None = None
    flow: str | None = None
    attributes: dict[str, str] | None = None
    traceback: str | None = None

    @property
    def claimed(self) -> int:
        return self.due + self.wait

    @property
    def finished(self) -> int:
        return self.claimed + self.run


def write_history(root: Path, runs: Iterable[Run], *, gaps: Sequence[LogGap] = ()) -> Path:
    """Write a warehouse with the events of these runs and the metrics that follow from them."""
    ordered = sorted(runs, key=lambda run: (run.queue, run.finished))
    events, metrics = [], []
    for queue, group in groupby(ordered, key=lambda run: run.queue):
        its = list(group)
        events += [{"queue": queue, **row} for row in _events(its)]
        metrics += [{"queue": queue, **row} for row in _metrics(its)]
    horizon = max((run.finished for run in ordered), default=0)
    state = State(source="redis://jobs.internal", gaps=tuple(gaps), horizon=horizon)
    add_rows(root, state, events=events, metrics=metrics)
    return root


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def _events(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [
        {
            "offset": f"{number:09d}", "kind": run.end, "id": run.id, "at": _time(run.finished),
            "attempt": run.attempt, "fence": number, "first": number, "revision": number, "enqueues": 1,
            "enqueued_at": _time(run.due), "run_at": _time(run.due), "claimed_at": _time(run.claimed),
            "finished_at": _time(run.finished), "holder": run.holder,
            "error_type": run.error, "error_message": run.error and "it broke",
            "error_traceback": run.traceback, "key": run.key, "flow": run.flow,
            "attributes": run.attributes and [*run.attributes.items()],
        }
        for number, run in enumerate(runs)
    ]  # fmt: skip


def _metrics(runs: Sequence[Run]) -> list[dict[str, Any]]:
    minutes = {at // MINUTE for run in runs for at in (run.due, run.claimed, run.finished)}
    for run in runs:
        minutes.update(range(run.due // MINUTE, run.finished // MINUTE + 1))
    return [_minute(runs, minute * MINUTE) for minute in sorted(minutes)]


def _minute(runs: Sequence[Run], begin: int) -> dict[str, Any]:
    end = begin + MINUTE
    ended = [run for run in runs if begin <= run.finished < end]
    due = sum(run.due < end <= run.claimed for run in runs)
    active = sum(max(0, min(run.finished, end) - max(run.claimed, begin)) for run in runs)
    return {
        "minute": _time(begin),
        "arrivals": sum(begin <= run.due < end for run in runs),
        "claims": sum(begin <= run.claimed < end for run in runs),
        **{kind: sum(run.end == kind for run in ended) for kind in ATTEMPT_ENDS},
        "attempts": len(ended),
        "backlog": due,
        "backlog_due": due,
        "active": active / MINUTE,
        "active_peak": max(1, round(active / MINUTE)),
        **{f"wait_p{p}_ms": max((run.wait for run in ended), default=None) for p in (50, 95, 99)},
        **{f"run_p{p}_ms": max((run.run for run in ended), default=None) for p in (50, 95, 99)},
    }
