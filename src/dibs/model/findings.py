"""Findings of `dibs doctor`: the values that its checks and the storages return."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Severity = Literal["error", "warning", "note"]
#: The severities, the gravest first.
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")


class Finding(Struct, frozen=True, kw_only=True):
    """A fault, or a risk, of a storage or of the workers on it."""

    code: str
    """Stable name of the kind of finding, as in "queue-not-served"."""
    severity: Severity
    """"error": jobs are lost or stand still; "warning": they may be; "note": good to know."""
    subject: str = ""
    """The queue, worker or setting that the finding is about; empty for the storage as a whole."""
    found: str
    """The facts, with figures."""
    means: str
    """The consequence."""
    advice: str
    """The remedy."""
    blocks: bool = False
    """True if dibs would not open the storage, or would change it to open it."""


class Rule(Struct, frozen=True):
    """A kind of finding: the parts that are the same in all findings of the kind."""

    code: str
    severity: Severity
    means: str
    advice: str
    blocks: bool = False

    def finding(self, found: str, subject: str = "") -> Finding:
        """Return a finding of this kind."""
        return Finding(
            code=self.code,
            severity=self.severity,
            subject=subject,
            found=found,
            means=self.means,
            advice=self.advice,
            blocks=self.blocks,
        )
