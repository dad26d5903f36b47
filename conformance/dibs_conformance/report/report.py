"""The class Report, which `certify` returns."""

from __future__ import annotations

import msgspec

from dibs_conformance.report.text import report_lines, verdict_sentence
from dibs_conformance.report.values import ReportData


class CertificationReport(ReportData, frozen=True, kw_only=True):
    """The result of a certification. `text`, `html`, `badge` and `json` render it.

    For example, a script that fails with the reasons, and keeps a page:

        report = certify("file:./scratch", "L3", budget=600)
        Path("report.html").write_text(report.html())
        if not report.certified:
            sys.exit(report.text())
    """

    def json(self) -> str:
        """Return the report as JSON: one key for each field, and `verdict`, `failed_at` and `not_tried`."""
        shown = msgspec.to_builtins(self)
        shown |= {"verdict": verdict_sentence(self), "failed_at": self.failed_at}
        return msgspec.json.encode(shown | {"not_tried": self.not_tried}).decode()

    def text(self, width: int = 80) -> str:
        """Return the report as plain lines of text, each at most `width` wide."""
        return "\n".join(report_lines(self, width))

    def html(self) -> str:
        """Return the report as one HTML page without links to other files."""
        from dibs_conformance.report.page import render_page  # noqa: PLC0415 - loads jinja2 only on request

        return render_page(self)

    def badge(self) -> str:
        """Return a small SVG for a README: the level that was reached, or "broken"."""
        from dibs_conformance.report.page import render_badge  # noqa: PLC0415 - loads jinja2 only on request

        return render_badge(self)
