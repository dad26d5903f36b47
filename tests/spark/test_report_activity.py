"""The starts by hour, the workers, and the trimmed periods of a report."""

from __future__ import annotations

from pathlib import Path

from dibs.spark.history.warehouse import LogGap
from dibs.spark.report.figures.periods import MAX_DAYS, MAX_WORKERS
from dibs.spark.report.figures.summary import QueueSummary, TrimmedPeriod, create_report
from dibs.spark.report.page.render import render_page
from tests.spark.report_rows import DAY, HOUR, MINUTE, NOON, Run, write_history


def summary(root: Path, *runs: Run) -> QueueSummary:
    return create_report(write_history(root, runs))[0].queues[0]


def test_starts_are_counted_by_day_and_hour_of_the_claim(tmp_path: Path) -> None:
    runs = [
        Run(due=NOON + 50 * MINUTE, wait=20 * MINUTE),
        *(Run(due=NOON + 2 * DAY + 3 * HOUR, run=5 * HOUR) for _ in range(4)),
    ]
    first, between, last = summary(tmp_path, *runs).starts

    assert (NOON - 12 * HOUR, 1, 1) == (first.day, first.hours[13], sum(first.hours))
    assert (NOON + 12 * HOUR, 0) == (between.day, sum(between.hours))
    assert (4, 4) == (last.hours[15], sum(last.hours))


def test_the_heat_map_has_the_latest_days(tmp_path: Path) -> None:
    starts = summary(tmp_path, Run(), Run(due=NOON + 40 * DAY)).starts

    assert (MAX_DAYS, NOON - 12 * HOUR + 40 * DAY) == (len(starts), starts[-1].day)
    page = render_page(*create_report(tmp_path))
    # The ranges with different figures are the hour and the day, the week, and all.
    assert 24 * (1 + 2 + 8 + MAX_DAYS) == page.count('<i style="--part:')
    assert 'style="--part:100%" title="2026-12-30 12:00: 1 starts"' in page


def test_a_worker_has_its_attempts_failures_and_run_times(tmp_path: Path) -> None:
    runs = [
        Run(holder="b", run=10),
        Run(holder="a", run=30, end="stalled"),
        Run(holder="a", run=50, due=NOON + MINUTE),
        Run(holder="a", run=20, end="retried"),
    ]
    first, second = summary(tmp_path, *runs).workers

    assert ("a", 3, 2, 1) == (first.holder, first.attempts, first.failures, first.stalled)
    assert (100, 50, NOON + MINUTE + 50) == (first.run_ms, first.longest_run_ms, first.last_end)
    assert ("b", 1, 0, 10) == (second.holder, second.attempts, second.failures, second.run_ms)


def test_workers_are_listed_up_to_a_bound(tmp_path: Path) -> None:
    found = summary(tmp_path, *(Run(holder=f"host:{n}") for n in range(MAX_WORKERS + 3)))

    assert (MAX_WORKERS, MAX_WORKERS + 3) == (len(found.workers), found.worker_count)
    assert "3 more workers had fewer attempts" in render_page(*create_report(tmp_path))


def test_a_trimmed_period_lies_between_the_events_around_it(tmp_path: Path) -> None:
    runs = [Run(run=0), Run(due=NOON + 5 * HOUR, run=0), Run(due=NOON + 6 * HOUR, run=0)]
    other = Run(queue="images", due=NOON + HOUR)
    gap = LogGap(queue="mail", at=NOON + 2 * HOUR)
    report, series = create_report(write_history(tmp_path, [*runs, other], gaps=[gap]))

    assert (
        TrimmedPeriod(queue="mail", at=gap.at, begin=NOON, end=NOON + 5 * HOUR, estimated_attempts=10),
    ) == report.gaps
    page = render_page(report, series)
    assert "after 2026-11-20 12:00:00 and before 2026-11-20 17:00:00 (5 h)" in page
    # The minute before the gap and the hour after it have one attempt each.
    assert "the events of about 10 attempts in 5 h (by the rate of the hours around) were trimmed" in page
    assert "and before 2026-11-20 17:00:00 (5 h), about 10 attempts." in page


def test_a_gap_without_events_around_it_has_an_open_period(tmp_path: Path) -> None:
    gaps = [LogGap(queue="mail", at=NOON - HOUR), LogGap(queue="mail", at=NOON + HOUR)]
    report, series = create_report(write_history(tmp_path, [Run(run=0)], gaps=gaps))

    assert [(None, NOON), (NOON, None)] == [(gap.begin, gap.end) for gap in report.gaps]
    page = render_page(report, series)
    assert "up to the newest event" in page
    assert "an unknown number of events was trimmed" in page
