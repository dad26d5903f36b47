"""The report as one page of HTML that needs nothing else, and as a badge."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from dibs_conformance.report.text import capability_line, summary
from dibs_conformance.report.values import LEVEL_TITLES, LevelReport, ReportData

#: Width and height of the drawing, and of a step of the stairs in it.
WIDTH: Final = 860
STEP: Final = (168, 46)
#: Of a character of the badge's font at 11 px, about: enough that no text is cut.
CHARACTER: Final = 6.6


class Stair(NamedTuple):
    """One level, drawn as a step: where its tread begins, and how high it is."""

    name: str
    title: str
    #: What colours it: reached, broken, not-tested, not-run.
    mark: str
    note: str
    x: int
    y: int


def page(report: ReportData) -> str:
    """Return the whole page. Everything in it that came from outside is escaped."""
    return (
        templates()
        .get_template("page.html")
        .render(
            report=report,
            verdict=summary(report),
            mark=mark_of(report),
            stairs=stairs(report),
            width=WIDTH,
            step=STEP,
            height=STEP[1] * (len(LEVEL_TITLES) + 1) + 24,
            powers=[capability_line(power) for power in report.capabilities],
        )
    )


def badge(report: ReportData) -> str:
    """Return an SVG of one line: what was reached, or that the contract is broken."""
    mark = "broken" if report.failures else "reached" if report.reached else "not-tested"
    said = report.reached if mark == "reached" else mark.replace("-", " ")
    left = "dibs contract"
    sizes = [round(CHARACTER * len(text)) + 12 for text in (left, said)]
    return (
        templates().get_template("badge.svg").render(left=left, said=said, mark=mark, a=sizes[0], b=sizes[1])
    )


def mark_of(report: ReportData) -> str:
    if report.failures:
        return "broken"
    return "reached" if report.certified else "not-tested"


def stairs(report: ReportData) -> list[Stair]:
    """Return all levels there are, lowest first, also those that were not asked for."""
    found = {level.name: level for level in report.levels}
    run, rise = STEP
    return [
        Stair(name, title, *marked(found.get(name)), x=10 + run * n, y=rise * (len(LEVEL_TITLES) - n))
        for n, (name, title) in enumerate(LEVEL_TITLES.items())
    ]


def marked(level: LevelReport | None) -> tuple[str, str]:
    if level is None:
        return "not-run", "not asked for"
    if level.verdict in ("reached", "not tested") and level.histories:
        return level.verdict.replace(" ", "-"), f"{level.verdict}: {level.histories:,} histories"
    return level.verdict.replace(" ", "-"), level.verdict


@cache
def templates() -> Environment:
    return Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
