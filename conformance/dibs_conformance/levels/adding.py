"""Adding up what a level found in several ways."""

from __future__ import annotations

from dibs_conformance.levels.level import law_report
from dibs_conformance.report import Findings, LawReport


def joined(*found: Findings) -> Findings:
    """Add up what was found in several ways; a law met in one of them was met."""
    laws: dict[str, LawReport] = {}
    for law in (law for one in found for law in one.laws):
        before = laws.get(law.name)
        laws[law.name] = law if before is None else added(before, law)
    faults: dict[str, int] = {}
    for kind, count in ((kind, count) for one in found for kind, count in one.faults.items()):
        faults[kind] = faults.get(kind, 0) + count
    return Findings(
        histories=sum(one.histories for one in found),
        events=sum(one.events for one in found),
        faults=faults,
        laws=tuple(laws.values()),
        failures=tuple(failure for one in found for failure in one.failures),
        untested=tuple(gap for one in found for gap in one.untested),
        spared=tuple(gap for one in found for gap in one.spared),
    )


def added(one: LawReport, other: LawReport) -> LawReport:
    broken = "broken" in (one.verdict, other.verdict)
    return law_report(one.name, one.section, one.sentence, one.met + other.met, broken=broken)
