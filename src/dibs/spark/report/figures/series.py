"""The points of the charts of a queue, for each range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dibs.spark.history.tables import ATTEMPT_ENDS
from dibs.spark.report.figures.findings import MINUTE
from dibs.spark.report.figures.periods import RANGES

#: Maximum number of points of a line in a chart of the whole history, and in one of a shorter range. In a
#: longer period, a point stands for several minutes.
MAX_POINTS: Final = 480
MAX_RANGE_POINTS: Final = 240

#: Column -> one value per point of the charts; None without data.
Series = dict[str, list[Any]]

# A point may stand for several minutes. It then shows the mean of a count per minute, and the maximum of
# a percentile or a peak.
_SUMMED_COLUMNS: Final = ("arrivals", "claims", *ATTEMPT_ENDS)
_MAX_COLUMNS: Final = (
    "wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "run_p50_ms", "run_p95_ms", "run_p99_ms",
    "backlog_due", "active_peak",
)  # fmt: skip


def chart_series(minutes: Sequence[Mapping[str, Any]], end: int) -> dict[str, Series]:
    """Return range -> the points of its charts; `end` (ms) is the end of the history.

    Ranges that are longer than the history of the queue are left out.
    """
    begin = minutes[0]["minute"]
    found = {"all": _points(minutes, begin, minutes[-1]["minute"] + MINUTE, MAX_POINTS)}
    for name, length in RANGES.items():
        if end - length > begin:
            found[name] = _points(minutes, end - length, end, MAX_RANGE_POINTS)
    return found


def _points(minutes: Sequence[Mapping[str, Any]], begin: int, end: int, most: int) -> Series:
    """Return evenly spaced points from `begin` to `end`."""
    step = -(-(end - begin) // MINUTE // most) * MINUTE
    points: list[list[Mapping[str, Any]]] = [[] for _ in range(-(-(end - begin) // step))]
    for row in minutes:
        if begin <= row["minute"] < end:
            points[(row["minute"] - begin) // step].append(row)
    series: Series = {"at": [begin + n * step for n in range(len(points))], "step": [step]}
    for name in _SUMMED_COLUMNS:
        series[name] = [_rate(rows, name, step) for rows in points]
    for name in _MAX_COLUMNS:
        worst = ([row[name] for row in rows if row[name] is not None] for rows in points)
        series[name] = [max(values, default=None) for values in worst]
    series["active"] = [_rate(rows, "active", step) for rows in points]
    return series


def _rate(rows: Sequence[Mapping[str, Any]], name: str, step: int) -> float:
    """Return the mean of a column per minute; four digits are more than a chart shows."""
    total: float = sum(row[name] for row in rows)
    return round(total * MINUTE / step, 4)
