"""The page of a report: its HTML, made from small tables."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dibs.cli.main import app
from dibs.errors import Refused
from dibs.spark.report import report
from dibs.spark.report.figures.summary import create_report
from dibs.spark.report.page.render import MAX_LISTED, MAX_OPEN, render_page
from tests.spark.report_rows import HOUR, MINUTE, NOON, Run, write_history

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
