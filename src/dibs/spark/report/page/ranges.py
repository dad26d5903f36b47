"""The choice of a range of time: radio buttons, and labels for them in other places. It needs no script.

An element with the class `only` is shown while one of its other classes names the chosen range.
"""

from __future__ import annotations

from typing import Final

from dibs.spark.report.figures.summary import HistoryReport

LABELS: Final = {"hour": "last hour", "day": "last day", "week": "last week", "all": "all"}


def render_choice(report: HistoryReport) -> str:
    """Return the radio buttons with their labels."""
    chosen = "day" if report.end - report.begin > 24 * 3_600_000 else "all"
    return "".join(
        f'<input type="radio" name="range" id="range-{name}"{" checked" if name == chosen else ""}>'
        f'<label for="range-{name}">{label}</label>'
        for name, label in LABELS.items()
    )


def render_labels() -> str:
    """Return labels that choose a range of the radio buttons."""
    return "".join(f'<label for="range-{name}">{label}</label>' for name, label in LABELS.items())
