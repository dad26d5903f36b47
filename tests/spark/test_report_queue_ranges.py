"""The ids, errors, workers and starts of each range, compared with a count of the runs in plain Python."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

from dibs.spark.report.figures.findings import FAILURE_ENDS
from dibs.spark.report.figures.ids import TOP_IDS, IdSummary
from dibs.spark.report.figures.periods import RANGES
from dibs.spark.report.figures.summary import create_report
from dibs.spark.report.page.render import render_page
from tests.spark.report_rows import DAY, HOUR, MINUTE, NOON, Run, write_history


def random_runs(seed: int, number: int = 400) -> list[Run]:
    """Return runs of many ids in nine days, most of them on the last one."""
    rng = random.Random(seed)
    ends = ("completed", "completed", "failed", "retried", "stalled", "cancelled", "released")
    runs = []
    for _ in range(number):
        age = rng.choice((HOUR, DAY, 7 * DAY, 9 * DAY))
        end = rng.choice(ends)
        runs.append(
            Run(
                id=f"id {rng.randrange(60)}", due=NOON - rng.randrange(age), wait=rng.randrange(5000),
                run=rng.randrange(60_000), end=end, holder=f"host:{rng.randrange(5)}",
                error=f"shop.Error{rng.randrange(3)}" if end in FAILURE_ENDS else None,
            )
        )  # fmt: skip
    return [*runs, Run(id="last", due=NOON)]


def counted(runs: list[Run]) -> list[IdSummary]:
    by_id: dict[str, list[Run]] = {}
    for run in runs:
        by_id.setdefault(run.id, []).append(run)
    return [
        IdSummary(
            id=id,
            attempts=len(its),
            completed=sum(run.end == "completed" for run in its),
            failed=sum(run.end == "failed" for run in its),
            failures=sum(run.end in FAILURE_ENDS for run in its),
            merged=0,
            longest_wait_ms=max(run.wait for run in its),
            longest_run_ms=max(run.run for run in its),
            run_ms=sum(run.run for run in its),
        )
        for id, its in by_id.items()
    ]


def best(rows: list[IdSummary], column: str) -> list[IdSummary]:
    return sorted(rows, key=lambda row: (-getattr(row, column), row.id))[:TOP_IDS]


def test_each_range_has_the_figures_of_its_runs(tmp_path: Path) -> None:
    runs = random_runs(7)
    report, _ = create_report(write_history(tmp_path, runs))
    ranges = {figures.name: figures for figures in report.queues[0].ranges}

    for name, length in {**RANGES, "all": 100 * DAY}.items():
        found, its = ranges[name], [run for run in runs if run.finished >= report.end - length]
        rows = counted(its)
        assert best(rows, "longest_run_ms") == [*found.ids.slowest]
        assert best(rows, "attempts") == [*found.ids.hottest]
        assert [row for row in best(rows, "failures") if row.failures] == [*found.ids.failing]
        assert Counter(run.error for run in its if run.error) == found.errors
        assert Counter(run.holder for run in its) == {w.holder: w.attempts for w in found.workers}
        assert {end: count for end, count in found.ends.items() if count} == Counter(run.end for run in its)
        starts = [run for run in runs if run.claimed // MINUTE * MINUTE >= report.end - length]
        assert len(starts) == sum(count for day in found.starts for count in day.hours)


def test_a_queue_has_a_block_for_each_range_with_different_figures(tmp_path: Path) -> None:
    """The whole history has three hours, so the day and the week are `all`."""
    runs = [Run(id="early", holder="host:early"), Run(id="late", due=NOON + 3 * HOUR, holder="host:late")]
    page = render_page(*create_report(write_history(tmp_path, runs)))
    section = page.partition("<section")[2].partition("</section>")[0]
    hour, whole = re.split('<div class="only day week all">', section.partition('<div class="only hour">')[2])

    assert (False, True) == ("host:early" in hour, "host:late" in hour)
    assert (True, True) == ("host:early" in whole, "host:late" in whole)
    assert 5 == hour.count('data-range="hour"')
    assert 2 * 4 == page.count('<label for="range-')


def test_a_range_without_runs_says_so(tmp_path: Path) -> None:
    """The history ends with the last minute of all queues."""
    runs = [Run(queue="images"), Run(queue="mail", due=NOON + 3 * HOUR)]
    report, series = create_report(write_history(tmp_path, runs))
    images = next(queue for queue in report.queues if queue.queue == "images")

    assert (0, ()) == (images.ranges[0].last.attempts, images.ranges[0].ids.slowest)
    assert '<div class="only hour"><div class="card">No job was due, claimed or ended in this period.' in (
        render_page(report, series)
    )
