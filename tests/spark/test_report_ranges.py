"""The overview of a report: ranges of time, and the runs of ids."""

from __future__ import annotations

import re
from pathlib import Path

from dibs.spark.report.figures.ids import RUNS_PER_ID, TRACEBACK_LENGTH
from dibs.spark.report.figures.periods import RangeFigures
from dibs.spark.report.figures.summary import MAX_CHARTED_QUEUES, QueueSummary, create_report
from dibs.spark.report.page.render import MAX_LISTED_QUEUES, render_page
from tests.spark.report_rows import DAY, HOUR, MINUTE, NOON, Run, write_history


def mail(root: Path, *runs: Run) -> QueueSummary:
    report, _ = create_report(write_history(root, runs))
    return next(queue for queue in report.queues if queue.queue == "mail")


def ranges(queue: QueueSummary) -> dict[str, RangeFigures]:
    return {figures.name: figures for figures in queue.ranges}


def hours(*counts: int, first: int = NOON) -> list[Run]:
    """Return so many runs in each hour from `first` on; every second run fails. Run times are the hour."""
    return [
        Run(id=f"{hour}-{n}", due=first + hour * HOUR + n * MINUTE, wait=10 * hour, run=hour,
            end="failed" if n % 2 else "completed")
        for hour, count in enumerate(counts)
        for n in range(count)
    ]  # fmt: skip


def test_a_range_has_its_runs_and_those_of_the_period_before(tmp_path: Path) -> None:
    last_minute = [Run(id="last", due=NOON + 3 * HOUR - MINUTE, run=7)]
    hour = ranges(mail(tmp_path, *hours(2, 4, 6), *last_minute))["hour"]

    assert hour.before is not None
    assert (7, 3, 4, 2) == (
        hour.last.attempts, hour.last.failures, hour.before.attempts, hour.before.failures
    )  # fmt: skip
    assert (2, 7, 20, 20) == (hour.last.run.p50, hour.last.run.p95, hour.last.wait.p50, hour.last.wait.p95)
    assert (1, 10) == (hour.before.run.p50, hour.before.wait.p95)
    assert 7 == sum(hour.claims)


def test_a_history_that_is_too_short_has_no_period_before(tmp_path: Path) -> None:
    found = ranges(mail(tmp_path, *hours(2, 4, 6)))

    assert {"day": None, "week": None, "all": None} == {n: found[n].before for n in ("day", "week", "all")}
    assert {12} == {found[name].last.attempts for name in ("day", "week", "all")}


def test_the_backlog_is_that_of_the_end_of_the_period(tmp_path: Path) -> None:
    late = Run(id="late", due=NOON + HOUR, wait=90 * MINUTE)
    last = Run(id="last", due=NOON + 3 * HOUR - MINUTE)
    hour = ranges(mail(tmp_path, Run(id="first"), late, last))["hour"]

    assert hour.before is not None
    assert (0, 1) == (hour.last.backlog, hour.before.backlog)


def test_a_range_ends_with_the_history_of_all_queues(tmp_path: Path) -> None:
    other = Run(queue="images", due=NOON + 3 * DAY)

    assert 0 == ranges(mail(tmp_path, *hours(2, 4, 6), other))["day"].last.attempts


def test_the_latest_runs_of_an_id_are_kept_with_the_end_of_their_tracebacks(tmp_path: Path) -> None:
    runs = [
        Run(id="bad", due=NOON + n * MINUTE, attempt=n, end="failed", error="shop.Broken",
            traceback=f"begin {'x' * TRACEBACK_LENGTH} end {n}")
        for n in range(30)
    ]  # fmt: skip
    found = mail(tmp_path, *runs, Run(id="good")).runs

    assert ["bad", "good"] == sorted(found)
    assert [*range(29, 29 - RUNS_PER_ID, -1)] == [run.attempt for run in found["bad"]]
    assert all(len(run.error_traceback or "") == TRACEBACK_LENGTH for run in found["bad"])
    assert (found["bad"][0].error_traceback or "").endswith("end 29")


def test_the_page_links_a_queue_to_its_ids_and_an_id_to_its_runs(tmp_path: Path) -> None:
    bad = Run(id="<bad>", end="failed", error="shop.Broken", traceback="File <x>, line 3")
    page = render_page(*create_report(write_history(tmp_path, [bad])))
    links = set(re.findall(r'href="#([^"]+)"', page))

    assert {"overview", "q0", "q0-0"} == links
    assert all(f' id="{link}"' in page for link in links)
    fold = page.partition('<details id="q0-0">')[2].partition("</section>")[0]
    assert "<pre>File &lt;x&gt;, line 3</pre>" in fold
    assert "<bad>" not in page


def test_the_page_lists_a_bounded_number_of_queues(tmp_path: Path) -> None:
    queues = [Run(queue=f"queue {n:03}") for n in range(MAX_LISTED_QUEUES + 2)]
    page = render_page(*create_report(write_history(tmp_path, queues)))

    assert MAX_CHARTED_QUEUES == page.count("<section")
    assert 4 * MAX_LISTED_QUEUES == page.count('<th class="name" scope="row">')
    assert "2 queues with fewer attempts are in the JSON only" in page
    assert f"Bounds of this page: {MAX_LISTED_QUEUES} queues" in page
