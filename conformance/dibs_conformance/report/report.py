"""The class CertificationReport, which `certify` returns, and the removal of passwords from it.

The password and the options of the certified URL are removed from all texts of a report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from dibs.storage.addresses import redact_url
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


HIDDEN: Final = "***"
#: Options of a URL whose values are secrets.
SECRET_OPTIONS: Final = ("password", "passwd", "secret", "token", "sslpassword")


def without_passwords(report: CertificationReport, target: object) -> CertificationReport:
    """Return the report with HIDDEN for each secret of the URL. A function has none that the kit knows."""
    if not isinstance(target, str):
        return report
    secrets = sorted({secret for secret in secrets_of(target) if secret}, key=len, reverse=True)
    texts = {target: redact_url(target), **dict.fromkeys(secrets, HIDDEN)}
    return msgspec.convert(replace_texts(msgspec.to_builtins(report), texts), CertificationReport)


def secrets_of(url: str) -> Iterator[str]:
    """Yield the password of a URL and the values of secret options, as written and decoded."""
    _, _, rest = url.partition("://")
    authority = rest.partition("?")[0].rpartition("/")[0] or rest.partition("?")[0]
    account, at, _ = authority.rpartition("@")
    password = account.partition(":")[2] if at else ""
    options = [value for name, value in parse_qsl(rest.partition("?")[2]) if is_secret(name)]
    for secret in (password, *options):
        yield from (secret, unquote(secret))


def is_secret(option: str) -> bool:
    return any(word in option.lower() for word in SECRET_OPTIONS)


def replace_texts(value: Any, texts: dict[str, str]) -> Any:
    """Return the value with each text replaced, in all strings inside it."""
    if isinstance(value, str):
        for text, replacement in texts.items():
            value = value.replace(text, replacement)
        return value
    if isinstance(value, dict):
        return {key: replace_texts(inside, texts) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [replace_texts(inside, texts) for inside in value]
    return value
