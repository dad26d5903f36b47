"""The report: the verdicts of levels, and the forms text, JSON, HTML page and badge."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from dibs_conformance import certify
from dibs_conformance.certification import highest_reached, level_report
from dibs_conformance.command import certify as verb
from dibs_conformance.levels import LEVELS
from dibs_conformance.report import (
    LEVEL_TITLES,
    CapabilityReport,
    CertificationReport,
    Findings,
    LawFailure,
    LawReport,
    LevelReport,
    SkippedTest,
)
from dibs_conformance.report.report import without_passwords
from dibs_conformance.report.values import LevelVerdict
from dibs_conformance.target import LevelPlan, Locations
from tests.kit.shell import invoke

KEPT = LawReport(name="kept law", section="1", sentence="It is.", met=3, verdict="kept")
UNMET = LawReport(name="unmet law", section="2", sentence="It was not met.", met=0, verdict="not tested")
BROKEN = LawFailure(law="a law", why="<script>alert(1)</script> & more", story=("claim('a') -> <b>",))
GOOD = Findings(histories=5, events=50, laws=(KEPT,))


def level(name: str, found: Findings) -> LevelReport:
    return level_report(name, found, "", 1.0)


def report(*levels: LevelReport, **changes: object) -> CertificationReport:
    reached = highest_reached([*levels])
    whole = CertificationReport(
        target="my_storage",
        level=levels[-1].name,
        certified=reached == levels[-1].name,
        reached=reached,
        seed=7,
        seconds=2.5,
        durability="none at all",
        capabilities=(CapabilityReport(name="durable", claimed=True, found=True),),
        levels=levels,
        kit="1.4",
        date="2026-11-23",
    )
    return msgspec.structs.replace(whole, **changes)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (GOOD, "reached"),
        (Findings(), "not tested"),
        (Findings(histories=1, laws=(KEPT, UNMET)), "not tested"),
        (
            Findings(histories=1, laws=(KEPT,), untested=(SkippedTest(name="kill -9", why="no"),)),
            "not tested",
        ),
        (
            Findings(histories=1, laws=(KEPT,), spared=(SkippedTest(name="kill -9", why="not durable"),)),
            "reached",
        ),
        (Findings(histories=1, laws=(KEPT,), failures=(BROKEN,)), "broken"),
    ],
)
def test_a_level_is_reached_if_all_tests_ran(found: Findings, verdict: LevelVerdict) -> None:
    assert verdict == level("L0", found).verdict


def test_a_level_counts_only_above_reached_ones() -> None:
    short = Findings(histories=1, laws=(UNMET,))

    assert "L1" == highest_reached([level("L0", GOOD), level("L1", GOOD), level("L2", short)])
    assert "" == highest_reached([level("L0", short), level("L1", GOOD)])


def test_levels_above_a_broken_one_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def breaks(plan: LevelPlan) -> Findings:
        ran.append(plan.budget)
        return Findings(histories=1, failures=(BROKEN,))

    monkeypatch.setitem(LEVELS, "L0", breaks)
    found = certify("memory:", [*LEVELS][-1], budget=60)

    assert 1 == len(ran)
    assert {"broken", "not run"} >= {level.verdict for level in found.levels}
    assert ("", False) == (found.reached, found.certified)


def test_the_levels_share_the_rest_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = []

    def quick(plan: LevelPlan) -> Findings:
        budgets.append(plan.budget)
        return GOOD

    for name in LEVELS:
        monkeypatch.setitem(LEVELS, name, quick)
    top = [*LEVELS][-1]

    assert certify("memory:", top, budget=600).certified
    assert sorted(budgets) == budgets
    assert 600 / len(LEVELS) > budgets[0] > 300 / len(LEVELS)


def test_a_false_claim_is_not_certified() -> None:
    untrue = (CapabilityReport(name="durable", claimed=True, found=False),)
    shown = report(level("L0", GOOD), capabilities=untrue, certified=False)

    assert ["durable"] == [failure.law for failure in shown.failures]
    assert "failed at L0" in shown.text()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:hunter2@host:1/0?prefix=p", "redis://host:1/0"),
        ("postgresql://ann:hunter2@host/db?password=hunter2", "postgresql://host/db"),
        ("postgresql://ann:p%40ss@host/db", "postgresql://host/db"),
        ("postgresql://ann:p@ss@host/db", "postgresql://..."),
        ("file:./jobs?fsync=1", "file:./jobs"),
        ("memory:", "memory:"),
    ],
)
def test_no_password_is_in_a_report(url: str, shown: str) -> None:
    assert shown == Locations(url).name


def test_json_comes_back_the_same() -> None:
    shown = report(level("L0", GOOD), level("L1", Findings(failures=(BROKEN,))))

    assert shown == msgspec.json.decode(shown.json(), type=CertificationReport)


def test_the_lines_name_missing_tests() -> None:
    gap = SkippedTest(name="server restart", why="nobody knows how")
    text = report(
        level("L0", Findings(histories=1, laws=(UNMET,), untested=(gap,), faults={"cut": 3}))
    ).text()

    assert "my_storage: L0 not reached: histories 1, cut 3; not tried: server restart (L0)," in text
    assert "NOT TRIED: server restart: nobody knows how" in text
    assert "NOT TRIED: unmet law: no history of this run led to a check" in text
    assert "faults: cut 3" in text


class Page(HTMLParser):
    """An HTML page as a browser reads it: the tags in order, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_all_findings_and_escapes_them() -> None:
    gap = SkippedTest(name="disk full", why="no small disk")
    shown = report(level("L0", GOOD), level("L1", Findings(failures=(BROKEN,), untested=(gap,))))
    page = Page(shown.html())

    assert "script" not in page.tags
    assert BROKEN.why in page.text
    assert BROKEN.story[0] in page.text
    assert all(title in page.text for title in LEVEL_TITLES.values())
    assert "disk full" in page.text
    assert gap.why in page.text


@pytest.mark.parametrize("found", [GOOD, Findings(), Findings(failures=(BROKEN,))])
def test_the_badge_shows_the_verdict(found: Findings) -> None:
    badge = ET.fromstring(report(level("L0", found)).badge())
    expected = {"reached": "L0", "not tested": "no level reached", "broken": "failed at L0"}

    assert (
        f"dibs · {expected[level('L0', found).verdict]} · 60 s for L0 · kit 1.4 · seed 7 · 2026-11-23"
        == badge.attrib["aria-label"]
    )


def test_the_command_writes_page_and_badge(tmp_path: Path) -> None:
    page, badge = tmp_path / "report.html", tmp_path / "badge.svg"
    done = invoke(verb, "memory:", "--examples", "1", "--html", str(page), "--badge", str(badge))

    assert 0 == done.exit_code
    assert "Certified at L0: histories " in page.read_text("utf-8")
    assert "dibs · L0 · 1 random histories a level · kit " in badge.read_text("utf-8")


def test_each_line_of_the_text_fits_into_80_columns() -> None:
    """Long names of laws, findings and histories are wrapped; control characters are escaped."""
    name = "a law with a very long name " * 4
    long = LawReport(name=name, section="1", sentence="It is.", met=1, verdict="kept")
    wide = LawFailure(law=name, why="word " * 60 + "\x1b[31m", story=("claim(" + "x" * 200 + ")",))
    gap = SkippedTest(name="power loss", why="claimed, not tried: " + "no hook " * 20)
    found = Findings(histories=1, laws=(KEPT, long), failures=(wide,), untested=(gap,), raced=("claim",) * 40)
    text = report(level("L0", GOOD), level("L1", found)).text()

    assert 80 >= max(map(len, text.splitlines()))
    assert "x" * 200 in text.replace("\n", "").replace(" ", "")
    assert "\x1b" not in text


def test_certified_stands_only_beside_level_and_coverage() -> None:
    gap = SkippedTest(name="power loss", why="claimed, not tried")
    reached = report(level("L0", GOOD), level("L1", GOOD))
    missing = report(level("L0", GOOD), level("L1", msgspec.structs.replace(GOOD, untested=(gap,))))
    failed = report(level("L0", GOOD), level("L1", Findings(histories=1, failures=(BROKEN,))))

    assert "my_storage: certified at L1: histories 10, calls 100; not tried: L2, L3, L4" in reached.text()
    assert not missing.certified
    assert "L1 not reached, L0 reached: histories 10, calls 100; not tried: power loss" in missing.text(200)
    assert "failed at L1: " in failed.text()
    assert failed.text().count("certified") + missing.text().count("certified") == 0
    assert "certify(my_storage, " in failed.text()


@pytest.mark.parametrize("url", ["redis://ann:hunter2@host:1/0", "postgresql://ann:h%75nter2@host/db"])
def test_no_password_of_the_url_is_in_any_form(url: str) -> None:
    """An error of a driver may repeat the URL or the decoded password."""
    broken = LawFailure(law="a law", why=f"cannot connect to {url}: bad password hunter2", story=(url,))
    shown = without_passwords(report(level("L0", Findings(histories=1, failures=(broken,)))), url)

    for form in (shown.text(), shown.json(), shown.html(), shown.badge()):
        assert "nter2" not in form
    assert "bad password ***" in shown.text()


def test_the_json_names_what_was_not_tried() -> None:
    shown = msgspec.json.decode(report(level("L0", GOOD)).json())

    row = {"level": "L3", "what": "the whole level", "reason": "not requested", "needed": False}
    assert row in shown["not_tried"]
    assert "certified at L0: histories 5, calls 50; not tried: L1, L2, L3, L4" == shown["verdict"]


def test_the_page_has_no_external_resources() -> None:
    html = report(level("L0", GOOD)).html()

    assert not {"script", "link", "img", "iframe"} & {*Page(html).tags}
    assert "prefers-color-scheme: dark" in html
    assert "http" not in html.replace("http-equiv", "")


def test_the_command_writes_each_form_by_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795400000")
    for name in LEVELS:
        monkeypatch.setitem(LEVELS, name, lambda _: GOOD)
    files = [tmp_path / name for name in ("r.html", "r.json", "r.svg", "r.txt")]
    words = [word for file in files for word in ("--out", str(file))]

    assert 0 == invoke(verb, "memory:", "--level", "L4", "--seed", "7", *words).exit_code
    html, json, svg, text = (file.read_text("utf-8") for file in files)
    assert "Certified at L4" in html
    assert "2026-11-23" == msgspec.json.decode(json)["date"]
    assert "· seed 7 · 2026-11-23" in svg
    assert "certified at L4" in text


@pytest.mark.parametrize(("name", "error"), [("r.pdf", ".svg"), ("none/r.html", "folder")])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    name: str, error: str, tmp_path: Path
) -> None:
    done = invoke(verb, "memory:", "--out", str(tmp_path / name))

    assert 2 == done.exit_code
    assert error in done.stderr
