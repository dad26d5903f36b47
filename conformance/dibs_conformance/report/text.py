"""The report for people: plain lines for logs and failing tests, tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from dibs_conformance.report.values import CapabilityReport, Failure, LevelReport, ReportData


def lines(report: ReportData) -> Iterator[str]:
    """Tell all of the report, the verdict first and each failure's story last."""
    yield from head(report)
    for level in report.levels:
        yield ""
        yield level_line(level)
        yield from details(level)
        # Where something broke, what was not met by then says nothing.
        laws = [law for law in level.laws if law.met or level.verdict != "broken"]
        width = max((len(law.name) for law in laws), default=0)
        for law in laws:
            yield f"  {law.name:<{width}}  {law.met:>9,}  {law.verdict}"
    yield ""
    yield from map(capability_line, report.capabilities)
    for failure in report.failures:
        yield ""
        yield from story(failure)


def show(report: ReportData, console: Console) -> None:
    """Print the report as tables."""
    for line in head(report):
        console.print(line, markup=False, highlight=False)
    console.print(levels_table(report))
    for level in report.levels:
        for line in details(level):
            console.print(f"{level.name}{line}", markup=False, highlight=False)
    console.print(laws_table(report))
    for capability in report.capabilities:
        console.print(capability_line(capability), markup=False, highlight=False)
    for failure in report.failures:
        for line in ("", *story(failure)):
            console.print(line, markup=False, highlight=False)


def head(report: ReportData) -> Iterator[str]:
    yield f"{report.target}: {summary(report)}"
    for failure in report.failures[-1:]:
        yield f"{failure.law}: {failure.why}"
    yield (
        f"{report.histories:,} histories, {report.events:,} calls, seed {report.seed}, "
        f"{report.seconds:.1f} s, contract {report.contract}"
    )
    yield f"durability: {report.durability}"


def summary(report: ReportData) -> str:
    """Say in a sentence what the report comes to."""
    if report.failures:
        return "DOES NOT KEEP THE CONTRACT"
    if report.certified:
        return f"keeps the contract, level {report.level}"
    short = next((level for level in report.levels if level.unmet or not level.histories), None)
    missing = f"{short.name} was not tested whole" if short else "a level was not run"
    reached = f", {report.reached} is reached" if report.reached else ""
    return f"NOT CERTIFIED for {report.level}: nothing broke, but {missing}{reached}"


def level_line(level: LevelReport) -> str:
    figures = f"{level.histories:,} histories, {level.events:,} calls, {level.seconds:.1f} s"
    return f"{level.name} {level.title}: {level.verdict} ({figures})"


def details(level: LevelReport) -> Iterator[str]:
    """Name the faults that were injected, and what was not tried."""
    if level.faults:
        yield "  faults: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(level.faults.items()))
    for gap in level.untested:
        yield f"  not tested: {gap.name}: {gap.why}"
    for gap in level.spared:
        yield f"  does not apply: {gap.name}: {gap.why}"


def capability_line(capability: CapabilityReport) -> str:
    found = "could not be tried" if capability.found is None else "found" if capability.found else "not found"
    claim = "claimed" if capability.claimed else "not claimed"
    return f"{capability.name}: {claim}, {found}" + (f" ({capability.note})" if capability.note else "")


def story(failure: Failure) -> Iterator[str]:
    yield f"BROKEN: {failure.law}: {failure.why}"
    for number, step in enumerate(failure.story, 1):
        yield f"  {number:>2}. {step}"


def levels_table(report: ReportData) -> Table:
    table = Table("level", "", "histories", "calls", "faults", "verdict")
    for level in report.levels:
        figures = (level.histories, level.events, sum(level.faults.values()))
        table.add_row(level.name, level.title, *(f"{figure:,}" for figure in figures), level.verdict)
    return table


def laws_table(report: ReportData) -> Table:
    table = Table("level", "law", "contract", "met", "verdict")
    for level in report.levels:
        for law in level.laws:
            table.add_row(level.name, law.name, law.section, f"{law.met:,}", law.verdict)
    return table
