"""The report as plain lines, for terminals, logs and failing tests."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from dibs_conformance.report.values import (
    CapabilityReport,
    LawFailure,
    LawReport,
    LevelReport,
    ReportData,
    add_counts,
)

#: The verdict of a level in words. A level that needs more tests than ran is not reached.
LEVEL_VERDICTS: Final = {
    "reached": "reached",
    "broken": "failed",
    "not tested": "not reached",
    "not run": "not run",
}
#: The width of the text report, in columns. The columns "checked" and "verdict" leave the rest to the law.
WIDTH: Final = 80
LAW_WIDTH: Final = WIDTH - 25


def report_lines(report: ReportData, width: int = WIDTH) -> Iterator[str]:
    """Yield the whole report: the verdict, the levels with their laws, the capabilities, the failures.

    Lines longer than `width` are wrapped. Characters that a terminal would not print are escaped.
    """
    for line in unwrapped_lines(report):
        yield from wrap_line(line, width)


def unwrapped_lines(report: ReportData) -> Iterator[str]:
    yield from summary_lines(report)
    for failure in report.failures:
        yield ""
        yield from failure_lines(failure)
    if report.failures:
        yield f"To repeat it: {repeat_command(report)}"
    for level in report.levels:
        yield ""
        yield level_line(level)
        yield from level_lines(level)
        # On a level that failed, a law without a check only means that the level stopped early.
        yield from law_lines([law for law in level.laws if law.met or level.verdict != "broken"])
    yield ""
    yield "Capabilities: claimed by the storage, found by the kit"
    yield from (f"  {capability_line(capability)}" for capability in report.capabilities)


def wrap_line(line: str, width: int) -> Iterator[str]:
    """Yield the parts of one line of the report, each at most `width` wide, with later parts indented."""
    for part in line.split("\n"):
        indent = " " * (len(part) - len(part.lstrip()))
        wrapped = textwrap.wrap(
            printable(part),
            width,
            subsequent_indent=f"{indent}    ",
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )
        yield from wrapped or [""]


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it cannot change a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def summary_lines(report: ReportData) -> Iterator[str]:
    """Yield the first lines of a report: verdict with its coverage, last failure, seed and durability."""
    yield f"{title(report)} {verdict_sentence(report)}"
    for failure in report.failures[-1:]:
        yield f"{failure.law}: {first_line(failure.why)}"
    yield (
        f"Seed {report.seed}, {report.effort}, kit {report.kit}, contract version {report.contract}, "
        f"{report.date}, {report.seconds:.1f} s"
    )
    yield f"Durability: {report.durability}"


def title(report: ReportData) -> str:
    """Return the target, with a colon after it."""
    return report.target if report.target.endswith(":") else f"{report.target}:"


def verdict_phrase(report: ReportData) -> str:
    """Return the verdict without its coverage. A certified level is called "reached" here."""
    if report.failures:
        return f"failed at {report.failed_at}"
    if report.certified:
        return f"reached {report.level}"
    return f"{report.level} not reached" + (f", {report.reached} reached" if report.reached else "")


def verdict_sentence(report: ReportData) -> str:
    """Return the verdict with the numbers of tests and the untried parts. No other text says "certified"."""
    verdict = f"certified at {report.level}" if report.certified else verdict_phrase(report)
    missing = not_tried_phrase(report)
    return f"{verdict}: {coverage_phrase(report)}" + (f"; not tried: {missing}" if missing else "")


def coverage_phrase(report: ReportData) -> str:
    """Return what all levels together tried, as "845 histories, 28,622 calls, 21 verbs raced"."""
    verbs = {verb for level in report.levels for verb in level.raced}
    faults = add_counts(level.faults for level in report.levels)
    tried = add_counts(level.tried for level in report.levels)
    counts = {
        "histories": report.histories,
        "calls": report.events,
        "verbs raced": len(verbs),
        **tried,
        **faults,
    }
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.items() if count)


def not_tried_phrase(report: ReportData) -> str:
    """Return what was not tried, as "power loss (L3), L4"; what a requested level needs comes first."""
    rows = sorted(report.not_tried, key=lambda row: not row.needed)
    return ", ".join(
        row.level if row.what == "the whole level" else f"{row.what} ({row.level})" for row in rows
    )


def repeat_command(report: ReportData) -> str:
    """Return the command or call that repeats the run. A target without a URL is a function."""
    url = ":" in report.target
    effort = f"--budget {report.budget:g}" if report.examples is None else f"--examples {report.examples}"
    if url:
        return f"dibs certify {report.target} --level {report.level} --seed {report.seed} {effort}"
    given = effort.removeprefix("--").replace(" ", "=")
    return f'certify({report.target}, "{report.level}", seed={report.seed}, {given})'


def first_line(text: str) -> str:
    return text.partition("\n")[0]


def level_line(level: LevelReport) -> str:
    """Return the line of a level: name, title, verdict and figures."""
    figures = f"{level.histories:,} histories, {level.events:,} calls, {level.seconds:.1f} s"
    return f"{level.name} {level.title}: {LEVEL_VERDICTS[level.verdict]} ({figures})"


def level_lines(level: LevelReport) -> Iterator[str]:
    """Yield lines for the tests of a level, for its faults, and for its untried parts."""
    if level.tried:
        yield f"  tried: {counts_phrase(level.tried)}"
    if level.raced:
        yield f"  raced: {len(level.raced)} verbs: {', '.join(level.raced)}"
    if level.faults:
        yield f"  faults: {counts_phrase(level.faults)}"
    for row in level.not_tried:
        yield f"  {'NOT TRIED' if row.needed else 'not tried'}: {row.what}: {row.reason}"


def counts_phrase(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()))


def law_lines(laws: list[LawReport]) -> Iterator[str]:
    """Yield a table of laws: the name, how often it was checked, the verdict. Long names take two lines."""
    width = min(max((len(law.name) for law in laws), default=0), LAW_WIDTH)
    if laws:
        yield f"  {'law':<{width}}  {'checked':>9}  verdict"
    for law in laws:
        *above, last = textwrap.wrap(law.name, width)
        yield from (f"  {part}" for part in above)
        yield f"  {last:<{width}}  {law.met:>9,}  {law.verdict}"


def capability_line(capability: CapabilityReport) -> str:
    """Return the line of a capability: whether it is claimed, whether it was found, and the note."""
    outcomes = {None: "could not be tried", True: "found", False: "not found"}
    claim = "claimed" if capability.claimed else "not claimed"
    note = f" ({capability.note})" if capability.note else ""
    return f"{capability.name}: {claim}, {outcomes[capability.found]}{note}"


def failure_lines(failure: LawFailure) -> Iterator[str]:
    """Yield the broken law with its reason, and the numbered calls that lead to the failure."""
    yield f"FAILED: {failure.law}: {failure.why}"
    for number, step in enumerate(failure.story, 1):
        yield f"  {number:>2}. {step}"
