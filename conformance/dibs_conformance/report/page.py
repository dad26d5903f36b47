"""The report as one HTML page without links to other files, and as an SVG badge."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from dibs_conformance.report.text import LEVEL_VERDICTS, repeat_command, verdict_phrase, verdict_sentence
from dibs_conformance.report.values import LEVEL_TITLES, LevelReport, ReportData

#: Width in px of the drawing of the levels, which looks like stairs; then width and height of one step.
WIDTH: Final = 860
STEP: Final = (168, 46)
#: Width in px of one character in the badge's font at 11 px, rounded up so that no text is cut.
CHARACTER: Final = 6.6


class LevelStep(NamedTuple):
    """One level as a step of the drawing: its texts, its colour class, and its position in px."""

    name: str
    title: str
    #: CSS class: reached, broken, not-tested or not-run.
    mark: str
    note: str
    x: int
    y: int


def render_page(report: ReportData) -> str:
    """Return the HTML page. Texts that come from the storage are escaped."""
    return (
        templates()
        .get_template("page.html")
        .render(
            report=report,
            verdict=verdict_phrase(report),
            sentence=verdict_sentence(report),
            repeat=repeat_command(report),
            mark=report_css_class(report),
            stairs=level_steps(report),
            width=WIDTH,
            step=STEP,
            height=STEP[1] * (len(LEVEL_TITLES) + 1) + 24,
            verdicts=LEVEL_VERDICTS,
        )
    )


def render_badge(report: ReportData) -> str:
    """Return an SVG of one line, as "dibs · L3 · 600 s for L0 to L3 · kit 1.4 · seed 7 · 2026-11-23".

    The level is the highest that was reached together with all below it, "failed at L1", or "no level".
    """
    failed = report.failed_at
    mark = "broken" if failed else "reached" if report.reached else "not-tested"
    level = f"failed at {failed}" if failed else report.reached or "no level reached"
    left = "dibs"
    right = " · ".join([level, report.effort, f"kit {report.kit}", f"seed {report.seed}", report.date])
    sizes = [round(CHARACTER * len(text)) + 12 for text in (left, right)]
    return (
        templates()
        .get_template("badge.svg")
        .render(left=left, right=right, mark=mark, title=verdict_sentence(report), a=sizes[0], b=sizes[1])
    )


def report_css_class(report: ReportData) -> str:
    """Return the CSS class of the verdict: broken, reached or not-tested."""
    if report.failures:
        return "broken"
    return "reached" if report.certified else "not-tested"


def level_steps(report: ReportData) -> list[LevelStep]:
    """Return a step for every level from L0 to L4, also for levels that were not requested."""
    found = {level.name: level for level in report.levels}
    run, rise = STEP
    return [
        LevelStep(
            name,
            title,
            *level_css_class_and_note(found.get(name)),
            x=10 + run * n,
            y=rise * (len(LEVEL_TITLES) - n),
        )
        for n, (name, title) in enumerate(LEVEL_TITLES.items())
    ]


def level_css_class_and_note(level: LevelReport | None) -> tuple[str, str]:
    """Return the CSS class and the note of a level. `level` is None if it was not requested."""
    if level is None:
        return "not-run", "not requested"
    if level.verdict in ("reached", "not tested") and level.histories:
        return level.verdict.replace(
            " ", "-"
        ), f"{LEVEL_VERDICTS[level.verdict]}: {level.histories:,} histories"
    return level.verdict.replace(" ", "-"), LEVEL_VERDICTS[level.verdict]


@cache
def templates() -> Environment:
    """Return the Jinja environment for the templates of this package. It escapes all values."""
    return Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
