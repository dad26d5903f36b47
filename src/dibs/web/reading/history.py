"""The history: the report of a warehouse of `dibs spark history`, if the dashboard has one."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Mapping
from contextvars import Context
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import define, field, frozen

from dibs.errors import DibsError, Refused
from dibs.storage.addresses import redact_url
from dibs.web.reading.source import where_raised

if TYPE_CHECKING:
    from dibs.spark.report.figures.summary import HistoryReport

#: Seconds that a view of the page waits for a report. A longer one appears by a live update.
PATIENCE: Final = 1.0
#: Most rows of the tables that a report reads: more would keep a CPU of the server busy for minutes.
MAX_ROWS: Final = 20_000_000
log = logging.getLogger("dibs.web")


@frozen
class HistoryPage:
    """The report of a warehouse."""

    #: "none" without a warehouse; "making" until the first report is ready; "failed"; "ready".
    state: str
    #: The folder or the URL of the warehouse; "" without one.
    folder: str = ""
    #: Reason for which there is no report; "" for the others.
    problem: str = ""
    report: HistoryReport | None = None


@frozen
class FullReport:
    """The report as an HTML page, and the Content-Security-Policy under which a browser may show it."""

    html: str
    policy: str


@define(eq=False)
class History:
    """The warehouse of a dashboard, and its latest report. A report is made again for each new generation."""

    root: str | Path | None = None
    #: False for a dashboard that redacts errors: its report has no error messages and no tracebacks.
    with_error_texts: bool = True
    #: Queue -> capacity units of a run, of the handlers that the dashboard knows.
    sizes: Mapping[str, int] = field(factory=dict)
    _made: tuple[HistoryReport, FullReport] | None = field(default=None, init=False)
    _task: asyncio.Task[tuple[HistoryReport, FullReport]] | None = field(default=None, init=False)

    async def read(self, _params: Mapping[str, str]) -> HistoryPage:
        """Return the figures of the newest generation; those of the one before while they are made."""
        if self.root is None:
            return HistoryPage("none")
        folder = _shown(self.root)
        problem = await self._refresh()
        if problem:
            return HistoryPage("failed", folder, problem)
        if self._made is None:
            return HistoryPage("making", folder)
        return HistoryPage("ready", folder, report=self._made[0])

    async def full_report(self) -> FullReport | None:
        """Return the report as a page; None if there is no report yet."""
        await self._refresh()
        return None if self._made is None else self._made[1]

    async def _refresh(self) -> str:
        """Make the report of a new generation in a thread. Return the reason if this fails, else ""."""
        if self.root is None:
            return ""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.get_loop() is not loop:
            # An empty context, because the report belongs to all viewers and not to the first one.
            self._task = loop.create_task(asyncio.to_thread(self._make, self.root), context=Context())
        task = self._task
        await asyncio.wait((task,), timeout=PATIENCE)
        if not task.done():
            return ""
        self._task = None
        try:
            self._made = task.result()
        except DibsError as error:
            return str(error).replace(str(self.root), _shown(self.root))
        except ImportError as error:
            return f'the report needs {error.name}: pip install "dibs[history]"'
        except Exception as error:  # noqa: BLE001 - the page names any error
            # Its message may quote the URL, so no log.exception.
            log.error(  # noqa: TRY400 - see above
                "the report of the warehouse %s failed: %s", _shown(self.root), where_raised(error)
            )
            return "the report cannot be made; the log of the dashboard has the reason"
        return ""

    def _make(self, root: str | Path) -> tuple[HistoryReport, FullReport]:
        """Return the report of the current generation; make it first if there is none.

        Raise Refused for a warehouse with more than MAX_ROWS rows.
        """
        from dibs.spark.history.warehouse import Warehouse  # noqa: PLC0415 - an extra may be missing
        from dibs.spark.report.figures.summary import (  # noqa: PLC0415 - the same
            WINDOW_MS,
            ReportOptions,
            create_report,
        )
        from dibs.spark.report.page.render import render_page  # noqa: PLC0415 - the same

        made = self._made
        warehouse = Warehouse(root)
        if made is not None and made[0].generation == warehouse.generation:
            return made
        since = datetime.fromtimestamp((warehouse.state.horizon - WINDOW_MS) / 1000, UTC)
        rows = warehouse.events.count("at", since) + warehouse.metrics.count("minute", since)
        if rows > MAX_ROWS:
            raise Refused(
                f"the last 28 days have {rows:,} rows, and the dashboard makes reports of up to "
                f"{MAX_ROWS:,}; make one of a later --since with dibs spark report --warehouse … --out FILE",
                field="warehouse",
            )
        options = ReportOptions(sizes=self.sizes, with_error_texts=self.with_error_texts)
        figures, series = create_report(root, options)
        html = render_page(figures, series)
        return figures, FullReport(html, _policy(html))


def _shown(root: str | Path) -> str:
    """Return the folder, or the URL without user, password and options."""
    return redact_url(str(root)) if "://" in str(root) else str(root)


def _policy(html: str) -> str:
    """Return a policy that runs the script of the report and no other.

    The sandbox has no origin, so the page has neither the cookies of the dashboard nor its rights.
    """
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return (
        f"sandbox allow-scripts; default-src 'none'; script-src 'sha256-{digest}'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
