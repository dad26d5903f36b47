"""The result of the demo: a table and a summary line for people, JSON for programs."""

from __future__ import annotations

from typing import Any

import msgspec
from attrs import define, field

from dibs.cli.demo.figures import Figures
from dibs.cli.demo.ideas import Idea


@define(kw_only=True)
class DemoResult:
    """The result of one run of the demo. Its fields are the JSON of `dibs demo --json`."""

    url: str
    root: str
    interrupted: bool = False
    files: int = 0
    bytes: int = 0
    lines: int = 0
    #: Number of files that have not changed since an earlier run.
    already_done: int = 0
    processed: int = 0
    failed: int = 0
    #: The first failed files, each with its error.
    failures: list[str] = field(factory=list)
    #: Number of paths that could not become jobs.
    skipped: int = 0
    #: Number of digests that were computed a second time.
    checked: int = 0
    #: A message for each wrong digest.
    mismatches: list[str] = field(factory=list)
    #: Duration of the whole run, with demonstrations and checks.
    seconds: float = 0.0
    figures: Figures
    ideas: list[Idea] = field(factory=list)

    @property
    def good(self) -> bool:
        """True if all demonstrations succeeded and all digests are right."""
        return not self.interrupted and not self.mismatches and all(idea.shown for idea in self.ideas)


def to_json(result: DemoResult) -> dict[str, Any]:
    """Return the output of `dibs demo --json`; docs/reference/cli.md documents its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(result)
    return fields


#: Headings of the table; # marks a column of numbers.
COLUMNS = ("", "#value", "details")


def table_rows(result: DemoResult) -> list[tuple[str, str, str]]:
    """Return the rows of the table that `dibs demo` prints, in the order of COLUMNS."""
    return [
        *_file_rows(result),
        *(_work_rows(result.figures) if result.figures.jobs else []),
        *_check_rows(result),
    ]


def _file_rows(result: DemoResult) -> list[tuple[str, str, str]]:
    return [
        (
            "files",
            f"{result.files:,}",
            f"{result.processed:,} processed now, {result.already_done:,} before",
        ),
        ("bytes", f"{result.bytes:,}", ""),
        ("lines", f"{result.lines:,}", ""),
    ]


def _work_rows(figures: Figures) -> list[tuple[str, str, str]]:
    wait, run = figures.wait_ms, figures.run_ms
    return [
        ("jobs/s", f"{figures.jobs_per_second:,.0f}", f"{figures.jobs:,} jobs in {figures.seconds:.1f} s"),
        (
            "wait p50, p95",
            f"{wait.p50:,}, {wait.p95:,} ms",
            "time from due to claimed by a worker",
        ),
        ("run p50, p95", f"{run.p50:,}, {run.p95:,} ms", "time from claimed to the end of the job"),
        ("retries", f"{figures.retries + figures.timeouts:,}", "of file jobs, after an error"),
        ("stalls", f"{figures.stalls:,}", "of file jobs, because their worker was killed"),
    ]


def _check_rows(result: DemoResult) -> list[tuple[str, str, str]]:
    wrong = len(result.mismatches)
    rows = []
    if result.checked:
        rows.append(("digests checked", f"{result.checked:,}", f"{wrong:,} differ from a second computation"))
    if result.failed or result.skipped:
        missing = f"{result.failed:,} failed, {result.skipped:,} could not become jobs"
        rows.append(("not done", f"{result.failed + result.skipped:,}", missing))
    return rows


def summary_line(result: DemoResult) -> str:
    """Return the last line of the output: files, correct digests, demonstrations and duration."""
    done = result.processed + result.already_done
    if result.interrupted:
        return (
            f"interrupted: {done:,} of {result.files:,} files are done, and no job is lost. "
            "Run it again to continue"
        )
    shown = sum(idea.shown for idea in result.ideas)
    verdict = "all digests correct" if not result.mismatches else f"{len(result.mismatches):,} DIGESTS WRONG"
    files = "1 file" if done == 1 else f"{done:,} files"
    failed = f", {result.failed:,} failed" if result.failed else ""
    return (
        f"{files} ({format_size(result.bytes)}), {result.processed:,} of them now{failed}, {verdict}, "
        f"{shown} of {len(result.ideas)} demonstrations succeeded, in {result.seconds:.1f} s"
    )


def format_size(number: int) -> str:
    """Return a number of bytes with a decimal unit, as 331.7 kB."""
    if number < 1000:
        return f"{number} bytes"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} PB"
