"""The report of a warehouse: its figures, computed without Spark, and the HTML page with charts of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from dibs.client.options.arguments import epoch_ms

if TYPE_CHECKING:
    from dibs.spark.report.figures.summary import HistoryReport


@frozen
class ReportPage:
    """The report of a warehouse: its figures and its page. A notebook shows the page."""

    figures: HistoryReport = field(repr=False)
    #: The page as HTML. It needs no other file.
    html: str = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html, "utf-8")

    def _repr_html_(self) -> str:
        """Return a frame with the page for a notebook, in a sandbox: its script cannot reach the notebook."""
        style = "width:100%;height:56rem;border:0;border-radius:8px"
        return (
            f'<iframe title="Report of a dibs warehouse" sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )


def report(
    warehouse: str | Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    tz: str = "UTC",
    by: str = "",
    objective: float | None = None,
    target_wait_p95: float = 1.0,
    sizes: Mapping[str, int] | None = None,
) -> ReportPage:
    """Return the report of a warehouse; a notebook displays it.

        report("./history", by="attributes.customer", tz="Europe/Berlin").save("report.html")

    - `since` and `until` are the window, rounded to minutes. Default: the last 28 days of the history.
    - `tz` is the time zone of the page.
    - `by` compares groups of attempts: `key`, `flow`, `error`, or `attributes.NAME` for an attribute that the
      increments collect.
    - `objective` is the share of attempts that shall not fail, as 0.999; the page then has the burn rate.
    - `target_wait_p95` is the target of the capacity advice, in seconds: 95 of 100 jobs wait at most this
      long.
    - `sizes` has the capacity units of a run by queue: `app.handlers.sizes()`.
      Default: 10 for each queue, as for a `def`.

    Raises Refused if the folder has no warehouse, and for a wrong argument.
    """
    from dibs.spark.java import require_pyarrow  # noqa: PLC0415 - the names here are used without pyarrow

    require_pyarrow()
    from dibs.spark.report.figures.summary import ReportOptions, create_report  # noqa: PLC0415
    from dibs.spark.report.page.render import render_page  # noqa: PLC0415

    options = ReportOptions(
        target_wait_p95_ms=round(target_wait_p95 * 1000),
        sizes=sizes or {},
        since=None if since is None else epoch_ms("since", since),
        until=None if until is None else epoch_ms("until", until),
        zone=tz,
        by=by,
        objective=objective,
    )
    figures, series = create_report(warehouse, options)
    return ReportPage(figures, render_page(figures, series))
