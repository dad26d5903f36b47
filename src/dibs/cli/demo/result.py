"""The result of the demo: the figures of its runs, what it showed, and their texts.

Each demonstration runs real jobs, then reads the event log to report them. In the JSON of `dibs demo --json`
a demonstration is called an idea.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from math import ceil
from typing import Any

import msgspec
from attrs import define, field, frozen

from dibs.cli.demo import tasks
from dibs.errors import DibsError, JobFailed
from dibs.model.error_text import message_of
from dibs.model.events import LogEvent
from dibs.model.job import Outcome
from dibs.storage.protocol import LATEST, Storage


@frozen
class Percentiles:
    """The median and the 95th percentile, ms."""

    p50: int
    p95: int


@frozen(kw_only=True)
class Figures:
    """Statistics of the file jobs of one run of the demo."""

    jobs: int
    seconds: float
    jobs_per_second: float
    #: Time from when a job was due until it was claimed.
    wait_ms: Percentiles
    #: Time from the claim of a job until its end.
    run_ms: Percentiles
    retries: int
    stalls: int
    timeouts: int


def compute_figures(outcomes: Iterable[Outcome], seconds: float, since: int = 0) -> Figures:
    """Compute the statistics of the jobs that ended in this run.

    `since` is the start of the run, ms since the epoch. The waiting time of jobs that an interrupted run left
    in the queue is counted from there.
    """
    ended = list(outcomes)
    claimed = [outcome for outcome in ended if outcome.claimed_at is not None]
    return Figures(
        jobs=len(ended),
        seconds=round(seconds, 3),
        jobs_per_second=round(len(ended) / seconds, 1) if seconds > 0 else 0.0,
        wait_ms=percentiles([max(0, (o.claimed_at or 0) - max(o.run_at, since)) for o in claimed]),
        run_ms=percentiles([max(0, o.ended_at - (o.claimed_at or 0)) for o in claimed]),
        retries=sum(outcome.retries for outcome in ended),
        stalls=sum(outcome.stalls for outcome in ended),
        timeouts=sum(outcome.timeouts for outcome in ended),
    )


def percentiles(values: Sequence[int]) -> Percentiles:
    """Return both percentiles, by nearest rank; 0 without values."""
    return Percentiles(percentile(values, 50), percentile(values, 95))


def percentile(values: Sequence[int], rank: int) -> int:
    """Return the smallest value that at least `rank` percent of the values do not exceed."""
    if not values:
        return 0
    return sorted(values)[max(0, ceil(len(values) * rank / 100) - 1)]


#: Duration of the busy job at each try, s. Its duplicate must be enqueued while it runs.
BUSY_SECONDS = (0.5, 2.0, 8.0)
#: Time limit of each wait in this module, s.
TIMEOUT = 30.0
FINAL_KINDS = ("completed", "failed", "cancelled")


@frozen
class Idea:
    """The result of a demonstration, as in the JSON of `dibs demo --json`."""

    #: Name of the demonstration: blocked, retried or killed.
    idea: str
    #: True if dibs behaved as expected.
    shown: bool
    #: One sentence for people about the jobs and their times.
    told: str


async def show_blocked(storage: Storage) -> Idea:
    """Enqueue an id again while its first job is active."""
    for seconds in BUSY_SECONDS:
        seen = await end_of_log(storage, "busy")
        busy = tasks.stay_busy.options(id="one-at-a-time")
        await busy.enqueue(seconds)
        await wait_until_active(storage, "busy", "one-at-a-time")
        duplicate = await busy.enqueue(0.0)
        await duplicate.result(wait=TIMEOUT)
        runs = await attempts_since(storage, "busy", seen, duplicate.revision)
        ended = [run for run in runs if run.kind == "completed"]
        # One run is possible, too: if the first run stalled, the duplicate is folded into its repetition. Try
        # again.
        if duplicate.verdict == "blocked" and len(ended) > 1:
            (gap,) = pauses_between_runs(ended[-2:])
            told = f"an id was enqueued again during its run: the second run started {gap} ms after the first"
            return Idea("blocked", gap >= 0, told)
    return Idea("blocked", shown=False, told="the id was never enqueued while its job was active")


async def show_retried(storage: Storage) -> Idea:
    """Enqueue a job that fails until its failure handler runs."""
    seen, handled = await end_of_log(storage, "missing"), await end_of_log(storage, "missing!fail")
    missing = tasks.read_missing.options(id="a-file-that-is-not-there")
    ticket = await missing.enqueue("/a/file/that/is/not/there")
    with suppress(JobFailed):
        await ticket.result(wait=TIMEOUT)
    runs = await attempts_since(storage, "missing", seen, ticket.revision)
    handler = (await attempts_since(storage, "missing!fail", handled))[-1]
    failed = [run for run in runs if run.kind in ("retried", "failed")]
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in pauses_between_runs(failed))
    told = f"a job failed {len(failed)} times, with pauses of {seconds} s; then its failure handler ran"
    return Idea("retried", (runs[-1].kind, handler.kind) == ("failed", "completed"), told)


async def show_killed(storage: Storage) -> Idea:
    """Enqueue a job whose first run kills its worker process. Another process must run it again."""
    seen = await end_of_log(storage, "killed")
    ticket = await tasks.kill_the_worker.options(id="survivor").enqueue()
    run = await ticket.result(wait=TIMEOUT)
    runs = await attempts_since(storage, "killed", seen, ticket.revision)
    seconds = ", ".join(f"{gap / 1000:.1f}" for gap in pauses_between_runs(runs))
    told = f"a worker was killed during a job: the job ran again {seconds} s later, and run {run} completed"
    return Idea("killed", [run.kind for run in runs[-2:]] == ["stalled", "completed"], told)


def pauses_between_runs(runs: Sequence[LogEvent]) -> list[int]:
    """Return the time in ms between the end of each run and the claim of the next run."""
    return [(after.claimed_at or 0) - (before.finished_at or 0) for before, after in pairwise(runs)]


async def run_idea(show: Callable[[Storage], Awaitable[Idea]], storage: Storage) -> Idea:
    """Run a demonstration and return its result.

    An error becomes a failed result, so that it does not stop the jobs of the files.
    """
    try:
        return await show(storage)
    except (DibsError, TimeoutError, ValueError) as error:
        name = show.__name__.removeprefix("show_")
        return Idea(name, shown=False, told=f"failed: {type(error).__name__}: {message_of(error)}")


async def end_of_log(storage: Storage, queue: str) -> str:
    """Return the offset of the last event of a queue."""
    return (await storage.events(queue, after=LATEST)).offset


async def wait_until_active(storage: Storage, queue: str, id: str) -> None:
    """Wait until a worker runs the job. Raises TimeoutError after TIMEOUT seconds."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            (slot,) = await storage.get(queue, [id])
            if slot.current is not None and slot.current.run is not None:
                return
            await storage.wait([queue], for_="ids", ids=[id], timeout=0.02)


async def attempts_since(storage: Storage, queue: str, after: str, revision: int = 0) -> list[LogEvent]:
    """Wait until the job of an enqueue has ended, and return the ends of runs in the log after an offset.

    `revision` is the number of that enqueue, `ticket.revision`. Raises TimeoutError after TIMEOUT seconds.
    """
    found: list[LogEvent] = []
    async with asyncio.timeout(TIMEOUT):
        while True:
            page = await storage.events(queue, after=after)
            for _, event in page.events:
                found.append(event)
                if event.kind in FINAL_KINDS and event.revision >= revision:
                    return found
            after = page.offset
            if not page.events:
                await storage.wait([queue], for_="events", timeout=0.1)


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
