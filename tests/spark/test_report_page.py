"""The page of a report: its HTML, made from small tables."""

from __future__ import annotations

import random
import re
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dibs.cli.main import app
from dibs.errors import Refused
from dibs.spark.history.warehouse import LogGap
from dibs.spark.report import report
from dibs.spark.report.figures.findings import FAILURE_ENDS
from dibs.spark.report.figures.ids import TOP_IDS, IdSummary
from dibs.spark.report.figures.periods import MAX_DAYS, MAX_GROUPS, RANGES
from dibs.spark.report.figures.summary import QueueSummary, TrimmedPeriod, create_report
from dibs.spark.report.page.render import MAX_LISTED, MAX_OPEN, render_page
from tests.spark.report_rows import DAY, HOUR, MINUTE, NOON, Run, write_history

LONG = "a queue with a <long> name of more than sixty characters in all " * 2


def page_of(root: Path, *runs: Run) -> str:
    return render_page(*create_report(write_history(root, runs)))


def failing_ids(queue: str, number: int) -> list[Run]:
    return [
        Run(queue=queue, id=f"{queue} {n}", end="failed", due=NOON + n * MINUTE, error="shop.Broken")
        for n in range(number)
        for _ in range(6)
    ]


def late_start(queue: str, at: int = NOON) -> list[Run]:
    """Return two runs, with an hour between them in which the second is due and nothing happens."""
    return [Run(queue=queue, id="first", due=at), Run(queue=queue, id="second", due=at + MINUTE, wait=HOUR)]


def banners(page: str) -> list[str]:
    return re.findall(r'<div class="finding.*?</div>', page, re.DOTALL)


def test_failing_ids_of_a_queue_are_one_banner(tmp_path: Path) -> None:
    (banner,) = banners(page_of(tmp_path, *failing_ids("slow", 8)))

    assert '8 ids of <b class="clip" title="slow">slow</b> fail nearly every time: 48 of 48' in banner
    assert "mostly with" in banner
    assert 8 == banner.count("<li>")
    assert "causes 12% of all failures" in banner


def test_a_banner_lists_some_ids_and_counts_the_others(tmp_path: Path) -> None:
    (banner,) = banners(page_of(tmp_path, *failing_ids("slow", MAX_LISTED + 5)))

    assert MAX_LISTED + 1 == banner.count("<li>")
    assert "<li>5 more are in the JSON.</li>" in banner


def test_outages_of_the_same_queues_are_one_banner(tmp_path: Path) -> None:
    (banner,) = banners(page_of(tmp_path, *late_start("mail"), *late_start("mail", NOON + 5 * HOUR)))

    assert "was claimed in 2 periods" in banner
    assert 2 == banner.count("<li>from ")


def test_three_banners_are_open_and_the_others_are_folded(tmp_path: Path) -> None:
    page = page_of(tmp_path, *(run for n in range(5) for run in failing_ids(f"queue {n}", 2)))
    opened, _, folded = page.partition('<details class="more">')

    assert (MAX_OPEN, 2) == (len(banners(opened)), len(banners(folded)))
    assert "<summary>2 more findings</summary>" in folded


def test_long_names_are_clipped_with_a_title(tmp_path: Path) -> None:
    page = page_of(tmp_path, Run(queue=LONG, id="x" * 300, error="e" * 300, end="failed"))

    for name in (LONG.replace("<", "&lt;").replace(">", "&gt;"), "x" * 300, "e" * 300):
        places = re.findall(rf'(class="clip[^"]*" title="{name}")?>{name}<', page)
        assert places
        assert all(places)


def test_the_labels_of_a_chart_are_outside_of_the_drawing(tmp_path: Path) -> None:
    """A stretched drawing with text would be unreadable on a phone."""
    page = page_of(tmp_path, *late_start("mail"))
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)

    assert 5 < len(drawings)
    assert not any("<text" in drawing for drawing in drawings)
    assert all('preserveAspectRatio="none"' in drawing for drawing in drawings)
    # The last hour has charts of its own; the longer ranges are the whole history.
    assert page.count('<div class="chart">') == page.count('<div class="x"><span') == 10


def run_report(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["spark", "report", "--warehouse", str(root), *arguments])


def test_refresh_lets_the_page_reload_itself(tmp_path: Path) -> None:
    root, out = write_history(tmp_path / "warehouse", [Run()]), tmp_path / "report.html"
    plain = run_report(root, "--out", str(out))
    before = out.read_text("utf-8")
    done = run_report(root, "--out", str(out), "--refresh", "90")

    assert (0, 0) == (plain.exit_code, done.exit_code)
    assert 'http-equiv="refresh"' not in before
    assert '<meta http-equiv="refresh" content="90">' in out.read_text("utf-8")
    assert {"report.html", "warehouse"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "hint"), [(["--json", "--refresh", "5"], "--refresh needs --out FILE"),
                            (["--out", "x.html", "--refresh", "0.5"], "--refresh")]
)  # fmt: skip
def test_a_wrong_refresh_is_refused(tmp_path: Path, arguments: list[str], hint: str) -> None:
    done = run_report(write_history(tmp_path, [Run()]), *arguments)

    assert 2 == done.exit_code
    assert hint in done.stderr


def test_the_command_takes_the_sizes_of_an_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = write_history(tmp_path / "warehouse", [Run()]), tmp_path / "report.html"
    source = "from dibs import Dibs\napp = Dibs('memory:')\n@app.task(queue='mail', size=2)\ndef f(): ...\n"
    (tmp_path / "sized_shop.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = run_report(root, "sized_shop:app", "--out", str(out))

    assert 0 == done.exit_code, done.output
    assert "2 capacity units at the declared size of 2" in out.read_text("utf-8")
    assert 0 == run_report(root, "--out", str(out)).exit_code
    assert "10 capacity units at size 10, the default of a def" in out.read_text("utf-8")


def test_a_notebook_shows_the_page_in_a_sandbox(tmp_path: Path) -> None:
    page = report(write_history(tmp_path, [Run(id="<b>")]), sizes={"mail": 4})
    frame = page._repr_html_()

    assert frame.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in frame
    assert page.html == unescape(frame.partition('srcdoc="')[2].partition('"></iframe>')[0])
    assert page.figures.queues[0].capacity is not None
    assert 4 == page.figures.queues[0].capacity.size
    assert len(repr(page)) < 100


def test_a_notebook_gets_an_error_for_a_folder_without_a_warehouse(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no warehouse"):
        report(tmp_path)


# -- The starts by hour, the workers, and the trimmed periods of a report ----------------------------


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
    starts = summary(tmp_path, Run(), Run(due=NOON + 20 * DAY)).starts

    assert (MAX_DAYS, NOON - 12 * HOUR + 20 * DAY) == (len(starts), starts[-1].day)
    page = render_page(*create_report(tmp_path))
    # The ranges with different figures are the hour and the day, the week, and all.
    assert 24 * (1 + 2 + 8 + MAX_DAYS) == page.count('<i style="--part:')
    assert 'style="--part:100%" title="2026-12-10 12:00: 1 starts"' in page


def test_a_worker_has_its_attempts_failures_and_run_times(tmp_path: Path) -> None:
    runs = [
        Run(holder="b", run=10),
        Run(holder="a", run=30, end="stalled"),
        Run(holder="a", run=50, due=NOON + MINUTE),
        Run(holder="a", run=20, end="retried"),
    ]
    first, second = summary(tmp_path, *runs).workers

    assert ("a", 3, 2, 1) == (first.name, first.attempts, first.failures, first.stalled)
    assert (100, 50, NOON + MINUTE + 50) == (first.run_ms, first.longest_run_ms, first.last_end)
    assert ("b", 1, 0, 10) == (second.name, second.attempts, second.failures, second.run_ms)


def test_workers_are_listed_up_to_a_bound(tmp_path: Path) -> None:
    found = summary(tmp_path, *(Run(holder=f"host:{n}") for n in range(MAX_GROUPS + 3)))

    assert (MAX_GROUPS, MAX_GROUPS + 3) == (len(found.workers), found.worker_count)
    assert "3 more had fewer attempts" in render_page(*create_report(tmp_path))


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


# -- The ids, errors, workers and starts of each range, compared with a count of the runs in plain Python


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
        assert Counter(run.holder for run in its) == {w.name: w.attempts for w in found.workers}
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
