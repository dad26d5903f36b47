"""Functions for the findings of a level, which are its results without a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dibs_conformance.report.values import Findings, LawReport, LevelVerdict, Verdict


def level_verdict(found: Findings) -> LevelVerdict:
    """Return `broken` after a failure, `not tested` if a part of the level did not run, else `reached`."""
    if found.failures:
        return "broken"
    unmet = found.untested or any(law.verdict == "not tested" for law in found.laws)
    return "not tested" if unmet or not found.histories else "reached"


def law_report(name: str, section: str, sentence: str, met: int, *, broken: bool) -> LawReport:
    """Return the report of a law that was checked `met` times. With 0 checks it is `not tested`."""
    verdict: Verdict = "broken" if broken else "kept" if met else "not tested"
    return LawReport(name=name, section=section, sentence=sentence, met=met, verdict=verdict)


def merge_findings(*found: Findings) -> Findings:
    """Return the sum of several findings of one level. The checks of a law are added up."""
    laws: dict[str, LawReport] = {}
    for law in (law for one in found for law in one.laws):
        before = laws.get(law.name)
        laws[law.name] = law if before is None else merge_law_reports(before, law)
    return Findings(
        histories=sum(one.histories for one in found),
        events=sum(one.events for one in found),
        faults=add_counts(one.faults for one in found),
        tried=add_counts(one.tried for one in found),
        raced=tuple(sorted({verb for one in found for verb in one.raced})),
        laws=tuple(laws.values()),
        failures=tuple(failure for one in found for failure in one.failures),
        untested=tuple(gap for one in found for gap in one.untested),
        spared=tuple(gap for one in found for gap in one.spared),
        partly=tuple(gap for one in found for gap in one.partly),
    )


def add_counts(found: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of several mappings from a kind to a number."""
    total: dict[str, int] = {}
    for kind, count in (pair for one in found for pair in one.items()):
        total[kind] = total.get(kind, 0) + count
    return total


def merge_law_reports(one: LawReport, other: LawReport) -> LawReport:
    """Return one report for a law that occurs in two findings. It is broken if one of the two is broken."""
    broken = "broken" in (one.verdict, other.verdict)
    return law_report(one.name, one.section, one.sentence, one.met + other.met, broken=broken)
