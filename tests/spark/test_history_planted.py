"""A day with known troubles, played through a real storage: the report finds them, a browser shows it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from benchmarks.history_day import ExpectedFindings, simulate_day
from click.testing import CliRunner, Result

from dibs.cli.main import app
from dibs.errors import Refused
from dibs.spark.history.increments import update
from dibs.spark.history.warehouse import Warehouse
from dibs.spark.report.page import render_page
from dibs.spark.report.summary import HistoryReport, QueueSummary, create_report
from dibs.storage.registry import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class JobHistory:
    """A place, its warehouse, and what was planted there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder}/jobs"
        self.warehouse = folder / "warehouse"
        self.planted: ExpectedFindings = asyncio.run(simulate_day(self.url, runs=1200, hours=3))

    def type(self, *words: str) -> Result:
        return CliRunner(env={"DIBS_URL": self.url, "COLUMNS": "100"}).invoke(app, ["spark", *words])


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobHistory:
    """Taken in by the command line; it finds the session that runs."""
    story = JobHistory(tmp_path_factory.mktemp("story"))
    done = story.type("history", "--warehouse", str(story.warehouse), "--json")

    assert (0, "") == (done.exit_code, done.stderr)
    assert {"generation", "events", "since", "gaps"} == set(json.loads(done.stdout))
    assert story.planted.runs <= json.loads(done.stdout)["events"]
    return story


@pytest.fixture(scope="module")
def made(story: JobHistory) -> HistoryReport:
    return create_report(story.warehouse)[0]


def of(made: HistoryReport, queue: str) -> QueueSummary:
    return next(one for one in made.queues if one.queue == queue)


def test_the_planted_outage_is_found(story: JobHistory, made: HistoryReport) -> None:
    begin, end = story.planted.outage
    longest = made.outages[0]

    assert {"mail", "images"} <= set(longest.queues)
    assert begin <= longest.begin < begin + 300_000
    assert end == longest.end


def test_the_planted_poison_is_found(story: JobHistory, made: HistoryReport) -> None:
    worst = made.poisons[0]

    assert story.planted.poison == (worst.queue, worst.id)
    assert ("CorruptImageError", 0) == (worst.error_type, worst.completed)
    assert [story.planted.poison] == [(one.queue, one.id) for one in made.poisons]


def test_every_run_is_in_it(story: JobHistory, made: HistoryReport) -> None:
    assert story.planted.runs == sum(queue.attempts for queue in made.queues)
    assert all(queue.little.agree for queue in made.queues)
    assert all(queue.errors == {} or max(queue.errors.values()) > 0 for queue in made.queues)
    assert "CorruptImageError" == next(iter(of(made, "images").errors))
    assert story.planted.poison[1] == of(made, "images").hottest[0].id


def test_the_command_line_draws_the_page_and_prints_the_figures(
    story: JobHistory, made: HistoryReport
) -> None:
    out = story.folder / "report.html"
    done = story.type("report", "--warehouse", str(story.warehouse), "--out", str(out), "--json")

    assert (0, "") == (done.exit_code, done.stderr)
    assert made == msgspec.json.decode(done.stdout, type=HistoryReport)
    assert render_page(*create_report(story.warehouse)) == out.read_text("utf-8")


def test_the_page_asks_nobody_for_anything(story: JobHistory) -> None:
    text = render_page(*create_report(story.warehouse))

    assert [] == re.findall(r"(?:src|href)\s*=|url\(|@import|https?:", text)


def dom(file: Path, *options: str) -> str:
    assert BROWSER
    words = (
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        f"--user-data-dir={file.parent}/browser",
    )
    done = subprocess.run(
        [*words, "--virtual-time-budget=5000", *options, "--dump-dom", file.as_uri()],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: apt-get install chromium")
def test_a_browser_runs_it_and_shows_one_queue(story: JobHistory) -> None:
    """Its script ran to its end, on a name that would break out of a page that trusts it."""
    made, series = create_report(story.warehouse)
    odd = '</script><b onload="x">&'
    told = msgspec.json.decode(
        msgspec.json.encode(made).replace(b'"mail"', json.dumps(odd).encode()), type=HistoryReport
    )
    file = story.folder / "odd.html"
    file.write_text(render_page(told, {**series, odd: series["mail"]}), "utf-8")

    shown = dom(file)

    assert 'data-ready="yes"' in shown
    assert len(made.queues) == shown.count("<section")
    assert len(made.queues) - 1 == len(re.findall(r"<section[^>]* hidden", shown))
    assert "<b onload" not in shown


# What is refused, with what to do about it.


def test_a_warehouse_of_another_place_is_refused(
    story: JobHistory, spark: SparkSession, tmp_path: Path
) -> None:
    other = f"file:{tmp_path}/other"
    asyncio.run(make(other))
    before = Warehouse.existing(story.warehouse).folder

    with pytest.raises(Refused, match="holds the history of file:"):
        update(spark, other, story.warehouse)
    assert before == Warehouse.existing(story.warehouse).folder


async def make(url: str) -> None:
    async with open_storage(url):
        pass


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["report", "--warehouse", "nowhere", "--json"], 1, "dibs spark history --warehouse"),
        (["report", "--warehouse", "nowhere"], 2, "--out FILE"),
        (["history", "--warehouse", "new", "--until", "2026-11-20T00:00:00Z"], 2, "--since"),
        (["history", "--warehouse", "new", "--since", "yesterday"], 2, "2030-01-31"),
        (["history", "--warehouse", "new", "--url", "memory:"], 1, "exists only in this process"),
        (["history", "--warehouse", "new", "--url", "file:./jobz"], 1, "jobz. Check the path."),
    ],
)
def test_wrong_words_get_a_line_that_says_what_to_do(
    story: JobHistory, words: list[str], code: int, hint: str
) -> None:
    done = story.type(*words)

    assert (code, "") == (done.exit_code, done.stdout)
    assert hint in done.stderr


def test_a_log_that_ends_before_its_offset_is_another_log(
    spark: SparkSession, story: JobHistory, tmp_path: Path
) -> None:
    """The place was emptied: going on would mix two histories."""
    root = tmp_path / "warehouse"
    shutil.copytree(story.warehouse, root, symlinks=True)
    shutil.move(f"{story.folder}/jobs", f"{story.folder}/kept")
    try:
        asyncio.run(simulate_day(story.url, runs=5, hours=0.1))
        with pytest.raises(Refused, match="ends before the offset"):
            update(spark, story.url, root)
    finally:
        shutil.rmtree(f"{story.folder}/jobs")
        shutil.move(f"{story.folder}/kept", f"{story.folder}/jobs")
