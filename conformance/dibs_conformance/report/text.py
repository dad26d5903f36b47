"""The report as plain lines, for logs and failing tests, and as tables, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from dibs_conformance.report.values import CapabilityReport, Failure, LawReport, LevelReport, ReportData


def report_lines(report: ReportData) -> Iterator[str]:
    """Yield the whole report: the verdict, the levels with their laws, the capabilities, the failures."""
    yield from summary_lines(report)
    for level in report.levels:
        yield ""
        yield level_line(level)
        yield from fault_and_skip_lines(level)
        # On a broken level, a law without a check only means that the level stopped early.
        yield from law_lines([law for law in level.laws if law.met or level.verdict != "broken"])
    yield ""
    yield "Capabilities: claimed by the storage, found by the kit"
    yield from (f"  {capability_line(capability)}" for capability in report.capabilities)
    for failure in report.failures:
        yield ""
        yield from failure_lines(failure)


def print_tables(report: ReportData, console: Console) -> None:
    """Print the report as tables on a rich console."""
    for line in summary_lines(report):
        console.print(line, markup=False, highlight=False)
    console.print(levels_table(report))
    for level in report.levels:
        for line in fault_and_skip_lines(level):
            console.print(f"{level.name}{line}", markup=False, highlight=False)
    console.print(laws_table(report))
    for capability in report.capabilities:
        console.print(capability_line(capability), markup=False, highlight=False)
    for failure in report.failures:
        for line in ("", *failure_lines(failure)):
            console.print(line, markup=False, highlight=False)


def summary_lines(report: ReportData) -> Iterator[str]:
    """Yield the first lines of a report: verdict, last failure, number of calls, seed and durability."""
    yield f"{report.target} {verdict_phrase(report)}"
    for failure in report.failures[-1:]:
        yield f"{failure.law}: {failure.why}"
    yield (
        f"{report.histories:,} histories with {report.events:,} calls in {report.seconds:.1f} s, "
        f"seed {report.seed}, contract version {report.contract}"
    )
    yield f"Durability: {report.durability}"


def verdict_phrase(report: ReportData) -> str:
    """Return the verdict as the rest of a sentence that begins with the target."""
    if report.failures:
        return "DOES NOT KEEP THE CONTRACT"
    if report.certified:
        return f"keeps the contract at level {report.level}"
    incomplete = next((level for level in report.levels if level.unmet or not level.histories), None)
    missing = f"{incomplete.name} was not tested completely" if incomplete else "a level did not run"
    reached = f"; the highest level reached is {report.reached}" if report.reached else ""
    return f"is NOT CERTIFIED for level {report.level}: no law is broken, but {missing}{reached}"


def level_line(level: LevelReport) -> str:
    """Return the line of a level: name, title, verdict and figures."""
    figures = f"{level.histories:,} histories, {level.events:,} calls, {level.seconds:.1f} s"
    return f"{level.name} {level.title}: {level.verdict} ({figures})"


def fault_and_skip_lines(level: LevelReport) -> Iterator[str]:
    """Yield lines for the injected faults of a level, and for its tests that did not run or do not apply."""
    if level.faults:
        yield "  faults: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(level.faults.items()))
    for gap in level.untested:
        yield f"  not tested: {gap.name}: {gap.why}"
    for gap in level.spared:
        yield f"  does not apply: {gap.name}: {gap.why}"


def law_lines(laws: list[LawReport]) -> Iterator[str]:
    """Yield a table of laws: the name, how often it was checked, the verdict."""
    width = max((len(law.name) for law in laws), default=0)
    if laws:
        yield f"  {'law':<{width}}  {'checked':>9}  verdict"
    for law in laws:
        yield f"  {law.name:<{width}}  {law.met:>9,}  {law.verdict}"


def capability_line(capability: CapabilityReport) -> str:
    """Return the line of a capability: whether it is claimed, whether it was found, and the note."""
    outcomes = {None: "could not be tried", True: "found", False: "not found"}
    claim = "claimed" if capability.claimed else "not claimed"
    note = f" ({capability.note})" if capability.note else ""
    return f"{capability.name}: {claim}, {outcomes[capability.found]}{note}"


def failure_lines(failure: Failure) -> Iterator[str]:
    """Yield the broken law with its reason, and the numbered calls that lead to the failure."""
    yield f"BROKEN: {failure.law}: {failure.why}"
    for number, step in enumerate(failure.story, 1):
        yield f"  {number:>2}. {step}"


def levels_table(report: ReportData) -> Table:
    """Return a table with one row for each level."""
    table = Table("level", "title", "histories", "calls", "faults", "verdict")
    for level in report.levels:
        figures = (level.histories, level.events, sum(level.faults.values()))
        table.add_row(level.name, level.title, *(f"{figure:,}" for figure in figures), level.verdict)
    return table


def laws_table(report: ReportData) -> Table:
    """Return a table with one row for each law of each level."""
    table = Table("level", "law", "contract", "checked", "verdict")
    for level in report.levels:
        for law in level.laws:
            table.add_row(level.name, law.name, law.section, f"{law.met:,}", law.verdict)
    return table
