"""What the demo found, as a table and a last line for people, and as JSON for programs."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dibs.cli.demo.figures import Figures
from dibs.cli.demo.ideas import Idea


class Result(Struct, kw_only=True):
    """One run of the demo."""

    url: str
    root: str
    interrupted: bool = False
    files: int = 0
    bytes: int = 0
    lines: int = 0
    #: Unchanged since an earlier run.
    already_done: int = 0
    processed: int = 0
    failed: int = 0
    #: The first few of those that failed, and why.
    failures: list[str] = []
    #: Paths that could not be looked at.
    skipped: int = 0
    #: Digests that were computed directly as well, and what was wrong with them.
    checked: int = 0
    mismatches: list[str] = []
    #: All of it, with the ideas and the checks.
    seconds: float = 0.0
    figures: Figures
    ideas: list[Idea] = []

    @property
    def good(self) -> bool:
        """Whether everything was shown and nothing was wrong."""
        return not self.interrupted and not self.mismatches and all(idea.shown for idea in self.ideas)


def for_programs(result: Result) -> dict[str, Any]:
    """Return the result as documented in docs/reference/cli.md."""
    told: dict[str, Any] = msgspec.to_builtins(result)
    return told


#: What the three columns of the table are called; a number is set to the right.
COLUMNS = ("measure", "#value", "of which, or what it means")


def rows(result: Result) -> list[tuple[str, str, str]]:
    """Return the table at the end."""
    return [*_files(result), *(_work(result.figures) if result.figures.jobs else []), *_checks(result)]


def _files(result: Result) -> list[tuple[str, str, str]]:
    return [
        ("files", f"{result.files:,}", f"{result.processed:,} processed now, {result.already_done:,} before"),
        ("bytes", f"{result.bytes:,}", ""),
        ("lines", f"{result.lines:,}", ""),
    ]


def _work(figures: Figures) -> list[tuple[str, str, str]]:
    wait, run = figures.wait_ms, figures.run_ms
    return [
        ("jobs/s", f"{figures.jobs_per_second:,.0f}", f"{figures.jobs:,} jobs in {figures.seconds:.1f} s"),
        ("wait p50, p95", f"{wait.p50:,}, {wait.p95:,} ms", "from when a job was due to when it was claimed"),
        ("run p50, p95", f"{run.p50:,}, {run.p95:,} ms", "from its claim to its end"),
        ("retries", f"{figures.retries + figures.timeouts:,}", "of files, after an error"),
        ("stalls", f"{figures.stalls:,}", "of files, because their worker was killed"),
    ]


def _checks(result: Result) -> list[tuple[str, str, str]]:
    wrong = len(result.mismatches)
    rows = []
    if result.checked:
        rows.append(("digests checked", f"{result.checked:,}", f"{wrong:,} differ from a direct computation"))
    if result.failed or result.skipped:
        missing = f"{result.failed:,} failed, {result.skipped:,} could not be looked at"
        rows.append(("not done", f"{result.failed + result.skipped:,}", missing))
    return rows


def last_line(result: Result) -> str:
    """Return the whole run in one line."""
    done = result.processed + result.already_done
    if result.interrupted:
        return (
            f"interrupted: {done:,} of {result.files:,} files are done and kept, nothing is lost. "
            "Run it again to go on"
        )
    shown = sum(idea.shown for idea in result.ideas)
    verdict = "all digests right" if not result.mismatches else f"{len(result.mismatches):,} DIGESTS WRONG"
    files = "1 file" if done == 1 else f"{done:,} files"
    failed = f", {result.failed:,} failed" if result.failed else ""
    return (
        f"{files} ({size(result.bytes)}), {result.processed:,} of them now{failed}, {verdict}, "
        f"{shown} of {len(result.ideas)} ideas shown, in {result.seconds:.1f} s"
    )


def size(number: int) -> str:
    """Return a number of bytes as people say it."""
    if number < 1000:
        return f"{number} bytes"
    value = float(number)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} PB"
