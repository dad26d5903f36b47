"""The window of a report, its time zone, its groups, its new errors and its burn rate."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from dibs.cli.main import app
from dibs.errors import Refused
from dibs.spark.history.warehouse import Warehouse
from dibs.spark.report import report
from dibs.spark.report.figures.summary import ReportOptions, create_report
from dibs.spark.report.page.render import render_page
from tests.spark.report_rows import DAY, HOUR, MINUTE, NOON, Run, write_history


def test_a_report_of_a_window_is_that_of_its_runs(tmp_path: Path) -> None:
    runs = [
        Run(id=f"{day}-{hour}", due=NOON + day * DAY + hour * HOUR, wait=hour * 10, run=1000 + day)
        for day in range(4)
        for hour in range(20)
    ]
    since, until = NOON + DAY, NOON + 2 * DAY + 3 * HOUR
    inside = [run for run in runs if since <= run.due < until]
    whole = write_history(tmp_path / "whole", runs)
    [found] = create_report(whole, ReportOptions(since=since, until=until))[0].queues
    [expected] = create_report(write_history(tmp_path / "inside", inside))[0].queues

    assert len(inside) == found.attempts
    assert expected == found


def test_a_run_across_the_bounds_of_a_window_counts_with_its_part(tmp_path: Path) -> None:
    """So Little's law holds in each window: the minutes and the runs have the same active time."""
    across = [
        Run(id="before", due=NOON - 10 * MINUTE, run=30 * MINUTE),
        Run(id="over all", due=NOON - 10 * MINUTE, run=3 * HOUR),
        Run(id="inside", due=NOON + 10 * MINUTE, run=MINUTE),
        Run(id="after", due=NOON + 50 * MINUTE, run=HOUR),
    ]
    root = write_history(tmp_path, across)
    [queue] = create_report(root, ReportOptions(since=NOON, until=NOON + HOUR))[0].queues

    assert queue.little.agree
    assert (20 + 60 + 1 + 10) * MINUTE == round(queue.little.expected * HOUR)
    assert 2 == queue.attempts


def test_old_files_are_not_opened(tmp_path: Path) -> None:
    write_history(tmp_path, [Run(id="old", due=NOON - 40 * DAY)])
    tables = Warehouse(tmp_path)
    old = [Path(file) for table in (tables.events, tables.metrics) for file in table.rows().files]
    write_history(tmp_path, [Run(id="new")])
    for file in old:
        file.write_bytes(b"no Parquet")

    [queue] = create_report(tmp_path)[0].queues
    assert ["new"] == queue.listed_ids
    with pytest.raises(Exception, match=r"too small to be a Parquet file"):
        create_report(tmp_path, ReportOptions(since=NOON - 41 * DAY))


def test_days_and_hours_are_those_of_the_time_zone(tmp_path: Path) -> None:
    """Berlin is at UTC+1 in November; in the night of 25 October the hour from 2 comes twice."""
    night = int(datetime(2026, 10, 24, 23, 30, tzinfo=UTC).timestamp() * 1000)
    runs = [Run(id=str(hour), due=night + hour * HOUR) for hour in range(4)]
    made, series = create_report(write_history(tmp_path, runs), ReportOptions(zone="Europe/Berlin"))
    [day] = made.queues[0].starts
    page = render_page(made, series)

    assert {1: 1, 2: 2, 3: 1} == {hour: starts for hour, starts in enumerate(day.hours) if starts}
    assert datetime(2026, 10, 24, 22, tzinfo=UTC).timestamp() * 1000 == day.day
    assert "2026-10-25 01:30 to 2026-10-25 03:31 Europe/Berlin" in page
    assert "UTC" not in page


def test_attempts_are_grouped_by_key_attribute_and_error(tmp_path: Path) -> None:
    runs = [
        Run(id="a", key="x", attributes={"customer": '"ada"', "it's": "1"}, run=100),
        Run(
            id="b", key="x", attributes={"customer": '"bob"'}, run=20, wait=7, end="failed", error="KeyError"
        ),
        Run(id="c", key="y", attributes={"customer": '"ada"'}, run=300, wait=9),
        Run(id="d"),
    ]
    root = write_history(tmp_path, runs)

    def groups(by: str) -> list[tuple[str, int, int, int, int]]:
        [queue] = create_report(root, ReportOptions(by=by))[0].queues
        found = queue.ranges[-1].groups
        return [(row.name, row.attempts, row.failures, row.wait_p95_ms, row.run_ms) for row in found]

    assert [('"ada"', 2, 0, 9, 400), ('"bob"', 1, 1, 7, 20)] == groups("attributes.customer")
    assert [("1", 1, 0, 0, 100)] == groups("attributes.it's")
    assert [("x", 2, 1, 7, 120), ("y", 1, 0, 9, 300)] == groups("key")
    assert [("KeyError", 1, 1, 7, 20)] == groups("error")
    assert [] == groups("")
    assert "Attempts by attributes.customer" in report(root, by="attributes.customer").html


def test_an_error_is_new_in_the_ranges_before_which_no_run_had_it(tmp_path: Path) -> None:
    runs = [
        Run(id="a", due=NOON - 3 * DAY, end="failed", error="KeyError"),
        Run(id="b", due=NOON - 3 * HOUR, end="failed", error="ValueError"),
        Run(id="c", due=NOON, end="failed", error="KeyError"),
        Run(id="d", due=NOON, end="failed", error="ValueError"),
    ]
    made, series = create_report(write_history(tmp_path, runs))
    found = {figures.name: figures.new_errors for figures in made.queues[0].ranges}

    assert {"hour": (), "day": ("ValueError",), "week": (), "all": ()} == found
    assert 1 == render_page(made, series).count('class="new"')


def test_the_burn_rate_compares_failures_with_the_objective(tmp_path: Path) -> None:
    runs = [Run(id=str(number), end="failed" if number < 2 else "completed") for number in range(100)]
    root = write_history(tmp_path, runs)

    assert "<b>20.0</b>" in report(root, objective=0.999).html
    assert "burn rate; the objective allows 0.10% of failures" in report(root, objective=0.999).html
    assert "burn rate" not in report(root).html


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"zone": "Europe/Bielefeld"}, "tz is 'Europe/Bielefeld', which is no known time zone"),
        ({"zone": "../etc/passwd"}, "tz is '../etc/passwd'"),
        ({"by": "customer"}, "by is 'customer'; write key, flow, error, or attributes.NAME"),
        ({"by": "attributes."}, "by is 'attributes.'"),
        ({"objective": 99.9}, "objective is 99.9; write a share above 0 and below 1"),
        ({"objective": 0}, "objective is 0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        ReportOptions(**options)  # type: ignore[arg-type]


def test_the_command_takes_the_options(tmp_path: Path) -> None:
    root = write_history(
        tmp_path / "warehouse", [Run(id="early", due=NOON - 2 * HOUR), Run(id="late", key="x")]
    )
    command = ["spark", "report", "--warehouse", str(root), "--json"]
    window = ["--since", "2026-11-20T11:30:00Z", "--until", "2026-11-20T13:00:00Z", "--tz", "Asia/Tokyo"]
    done = CliRunner().invoke(app, [*command, *window, "--by", "key", "--objective", "0.99"])

    assert 0 == done.exit_code, done.output
    assert '"zone":"Asia/Tokyo"' in done.stdout.replace(" ", "")
    assert '"attempts":1' in done.stdout.replace(" ", "")
    refused = CliRunner().invoke(app, [*command, "--by", "customer"])
    assert 1 == refused.exit_code
    assert "by is 'customer'" in refused.stderr
