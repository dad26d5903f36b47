"""A simulated day with known problems on a real storage: the report finds them, and a browser shows the
page.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from benchmarks.history_day import ExpectedFindings, simulate_day
from click.testing import CliRunner, Result

from dibs.cli.main import app
from dibs.errors import Refused
from dibs.spark.history.increments import update
from dibs.spark.history.warehouse import Warehouse
from dibs.spark.report.figures.summary import HistoryReport, QueueSummary, ReportOptions, create_report
from dibs.spark.report.page.render import render_page
from dibs.storage.registry import open_storage

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class PlantedHistory:
    """A storage with a simulated day, its warehouse, and the problems of the day."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder}/jobs"
        self.warehouse = folder / "warehouse"
        self.planted: ExpectedFindings = asyncio.run(simulate_day(self.url, runs=1200, hours=3))

    def run_cli(self, *arguments: str) -> Result:
        return CliRunner(env={"DIBS_URL": self.url, "COLUMNS": "100"}).invoke(app, ["spark", *arguments])


#: One process of xdist makes the history for all tests.
pytestmark = pytest.mark.xdist_group("planted history")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> PlantedHistory:
    """The history, read by the command line."""
    history = PlantedHistory(tmp_path_factory.mktemp("story"))
    done = history.run_cli("history", "--warehouse", str(history.warehouse), "--json")

    assert (0, "") == (done.exit_code, done.stderr)
    assert {"generation", "events", "since", "gaps"} == set(json.loads(done.stdout))
    assert history.planted.runs <= json.loads(done.stdout)["events"]
    return history


@pytest.fixture(scope="module")
def report(history: PlantedHistory) -> HistoryReport:
    return create_report(history.warehouse)[0]


def of(report: HistoryReport, queue: str) -> QueueSummary:
    return next(one for one in report.queues if one.queue == queue)


def test_the_planted_outage_is_found(history: PlantedHistory, report: HistoryReport) -> None:
    begin, end = history.planted.outage
    longest = report.outages[0]

    assert {"mail", "images"} <= set(longest.queues)
    assert begin <= longest.begin < begin + 300_000
    assert end == longest.end


def test_the_planted_poison_is_found(history: PlantedHistory, report: HistoryReport) -> None:
    worst = report.poisons[0]

    assert history.planted.poison == (worst.queue, worst.id)
    assert ("CorruptImageError", 0) == (worst.error_type, worst.completed)
    assert [history.planted.poison] == [(one.queue, one.id) for one in report.poisons]


def test_the_report_has_every_run(history: PlantedHistory, report: HistoryReport) -> None:
    assert history.planted.runs == sum(queue.attempts for queue in report.queues)
    assert all(queue.little.agree for queue in report.queues)
    assert all(queue.errors == {} or max(queue.errors.values()) > 0 for queue in report.queues)
    assert "CorruptImageError" == next(iter(of(report, "images").errors))
    assert history.planted.poison[1] == of(report, "images").hottest[0].id


def test_the_command_line_writes_the_page_and_prints_the_figures(
    history: PlantedHistory, report: HistoryReport
) -> None:
    out = history.folder / "report.html"
    done = history.run_cli("report", "--warehouse", str(history.warehouse), "--out", str(out), "--json")

    assert (0, "") == (done.exit_code, done.stderr)
    assert report == msgspec.json.decode(done.stdout, type=HistoryReport)
    assert render_page(*create_report(history.warehouse)) == out.read_text("utf-8")


def test_the_page_loads_no_other_file(history: PlantedHistory) -> None:
    text = render_page(*create_report(history.warehouse))

    assert [] == re.findall(r'src\s*=|href="[^#]|url\(|@import|https?:', text)


def dom(file: Path, *options: str) -> str:
    assert BROWSER
    arguments = (
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        f"--user-data-dir={file.parent}/browser",
    )
    done = subprocess.run(
        [*arguments, "--virtual-time-budget=5000", *options, "--dump-dom", file.as_uri()],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: apt-get install chromium")
def test_a_browser_runs_it_and_shows_one_queue(history: PlantedHistory) -> None:
    """The script of the page runs to its end. The name of one queue would be HTML if it were not escaped."""
    report, series = create_report(history.warehouse)
    odd = '</script><b onload="x">&'
    renamed = msgspec.json.decode(
        msgspec.json.encode(report).replace(b'"mail"', json.dumps(odd).encode()), type=HistoryReport
    )
    file = history.folder / "odd.html"
    file.write_text(render_page(renamed, {**series, odd: series["mail"]}), "utf-8")

    shown = dom(file)

    assert 'data-ready="yes"' in shown
    assert len(report.queues) == shown.count("<section")
    assert len(report.queues) - 1 == len(re.findall(r"<section[^>]* hidden", shown))
    assert "<b onload" not in shown


# -- errors ------------------------------------------------------------------------------------------


def test_a_warehouse_of_another_storage_is_refused(history: PlantedHistory, tmp_path: Path) -> None:
    other = f"file:{tmp_path}/other"
    asyncio.run(make(other))
    before = Warehouse(history.warehouse).generation

    with pytest.raises(Refused, match="holds the history of file:"):
        update(other, history.warehouse)
    assert before == Warehouse(history.warehouse).generation


async def make(url: str) -> None:
    async with open_storage(url):
        pass


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["report", "--warehouse", "nowhere", "--json"], 1, "dibs spark history --warehouse"),
        (["report", "--warehouse", "nowhere"], 2, "--out FILE"),
        (["history", "--warehouse", "new", "--until", "2026-11-20T00:00:00Z"], 2, "--since"),
        (["history", "--warehouse", "new", "--since", "yesterday"], 2, "2030-01-31"),
        (["history", "--warehouse", "new", "--url", "memory:"], 1, "exists only in this process"),
        (["history", "--warehouse", "new", "--url", "file:./jobz"], 1, "jobz. Check the path."),
    ],
)
def test_an_error_names_its_remedy(
    history: PlantedHistory, arguments: list[str], code: int, hint: str
) -> None:
    done = history.run_cli(*arguments)

    assert (code, "") == (done.exit_code, done.stdout)
    assert hint in done.stderr


def test_a_log_that_ends_before_its_offset_is_another_log(history: PlantedHistory, tmp_path: Path) -> None:
    """The storage was emptied, and an increment would mix two histories."""
    root = tmp_path / "warehouse"
    shutil.copytree(history.warehouse, root, symlinks=True)
    shutil.move(f"{history.folder}/jobs", f"{history.folder}/kept")
    try:
        asyncio.run(simulate_day(history.url, runs=5, hours=0.1))
        with pytest.raises(Refused, match="was emptied"):
            update(history.url, root)
    finally:
        shutil.rmtree(f"{history.folder}/jobs")
        shutil.move(f"{history.folder}/kept", f"{history.folder}/jobs")


def test_both_counts_of_the_active_runs_agree_in_each_window(
    history: PlantedHistory, report: HistoryReport
) -> None:
    """A run across a bound of the window counts with its part inside, by the minute and by the run."""
    rng = random.Random(4)
    minutes = range(report.begin, report.end, 60_000)
    for _ in range(12):
        since, until = sorted(rng.sample(minutes, 2))
        made, _ = create_report(history.warehouse, ReportOptions(since=since, until=until))

        assert made.queues
        assert [] == [queue.queue for queue in made.queues if not queue.little.agree]
